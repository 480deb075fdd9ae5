//! How the ranks of a world find each other before any link is there.

use unisono_collectives::Rank;

use crate::error::{Error, Result};

mod directory;

pub(crate) use directory::Directory;

/// What ranks need of each other before they have a link: an all-gather of bytes. MPI has one, so has a key-value store, and
/// so has every trainer that starts its processes by itself.
///
/// All ranks make the same calls in the same order. They are few (about ten), and small (at most some kilobytes).
///
/// ```
/// use std::sync::mpsc::{Receiver, Sender, channel};
/// use unisono::{Bootstrap, OnFailure, Rank, ReduceOp, Unisono};
///
/// /// Two ranks, and a channel to the other one.
/// struct Pair(Rank, Sender<Vec<u8>>, Receiver<Vec<u8>>);
///
/// impl Bootstrap for Pair {
///     fn rank(&self) -> Rank {
///         self.0
///     }
///     fn ranks(&self) -> usize {
///         2
///     }
///     fn all_gather(&mut self, own: &[u8]) -> unisono::Result<Vec<Vec<u8>>> {
///         let gone = |_| unisono::Error::Launch("the other rank has ended".to_owned());
///         self.1.send(own.to_vec()).map_err(|_| gone(()))?;
///         let mut all = vec![self.2.recv().map_err(|_| gone(()))?];
///         all.insert(self.0, own.to_vec());
///         Ok(all)
///     }
/// }
///
/// let ((to_1, from_0), (to_0, from_1)) = (channel(), channel());
/// std::thread::scope(|scope| {
///     for pair in [Pair(0, to_1, from_1), Pair(1, to_0, from_0)] {
///         scope.spawn(move || -> unisono::Result<()> {
///             let mut comm = Unisono::builder().bootstrap(pair).processes()?;
///             let mut sum = [comm.rank() as f32 + 1.0];
///             comm.all_reduce(&mut sum, ReduceOp::Sum)?;
///             assert_eq!(sum, [3.0]);
///             Ok(())
///         });
///     }
/// });
/// ```
pub trait Bootstrap {
    /// The number of this rank.
    fn rank(&self) -> Rank;

    /// How many ranks the world has.
    fn ranks(&self) -> usize;

    /// What every rank gives, rank 0 first. Ranks may give different numbers of bytes. Called by all ranks.
    ///
    /// # Errors
    /// If another rank does not come: it must not wait for ever.
    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>>;
}

/// The only rank of its world.
#[cfg(not(feature = "mpi"))]
#[derive(Debug)]
pub(crate) struct Alone;

#[cfg(not(feature = "mpi"))]
impl Bootstrap for Alone {
    fn rank(&self) -> Rank {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![own.to_vec()])
    }
}

/// The same of a few numbers. Called by all ranks.
pub(super) fn gather<const N: usize>(bootstrap: &mut dyn Bootstrap, own: [u64; N]) -> Result<Vec<[u64; N]>> {
    let all = gather_bytes(bootstrap, bytemuck::cast_slice(&own))?;
    let other = || Error::Launch("ranks of different versions of unisono are in one world".to_owned());
    let words = |bytes: Vec<u8>| {
        let words = bytes.chunks(8).map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
        words.collect::<Option<Vec<_>>>()?.try_into().ok()
    };
    all.into_iter().map(words).collect::<Option<_>>().ok_or_else(other)
}

/// The same of bytes, and as many answers as there are ranks.
pub(super) fn gather_bytes(bootstrap: &mut dyn Bootstrap, own: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (ranks, all) = (bootstrap.ranks(), bootstrap.all_gather(own)?);
    if all.len() == ranks {
        return Ok(all);
    }
    Err(Error::Launch(format!(
        "the bootstrap's all-gather gave {} values in a world of {ranks} ranks",
        all.len()
    )))
}
