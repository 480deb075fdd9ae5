//! Bootstraps, by which the ranks of a world find each other before any link exists.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use unisono_collectives::Rank;

use crate::error::{Error, Result};
use crate::system::print_line;
use crate::while_waiting;

mod address;
mod arrivals;
mod directory;
mod peer;
mod rendezvous;
mod resolver;
mod unix;

pub(crate) use address::listen;
pub(crate) use arrivals::{Arrival, Arrivals, REACH, introduce, is_displaced};
pub(crate) use peer::{MAX_TIME, NAP, Peer};
pub(crate) use rendezvous::{Joining, LONGEST, Rendezvous, first};
pub(crate) use resolver::look_up;
pub(crate) use unix::{bind, connected_at};

/// The time after which a rank reports that it waits for others to begin.
pub(super) const WARN_AFTER: Duration = Duration::from_secs(10);
/// The shortest timeout for ranks to start, even with shorter deadlines of collectives: loading programs takes time.
pub(crate) const LEAST_TO_BEGIN: Duration = Duration::from_secs(20);

/// An all-gather of bytes, by which ranks set up their links. MPI, key-value stores and trainers that start their own processes can
/// provide one.
///
/// All ranks make the same calls in the same order: about ten, of at most a few kilobytes.
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
    /// Returns the number of this rank.
    fn rank(&self) -> Rank;

    /// Returns the number of ranks in the world.
    fn ranks(&self) -> usize;

    /// Gathers the bytes of every rank, rank 0 first; their lengths may differ. All ranks call it.
    ///
    /// # Errors
    /// If another rank does not arrive: an implementation must have a timeout.
    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Returns whether the next all-gather will fail, because a rank is known to have failed. Ranks that connect to each other then stop
    /// waiting.
    fn has_failed(&self) -> bool {
        false
    }
}

/// All-gathers values, rank 0 first. All ranks call it.
pub(crate) fn gather<T: Serialize + DeserializeOwned>(
    bootstrap: &mut dyn Bootstrap,
    own: &T,
) -> Result<Vec<T>> {
    let own = serde_json::to_vec(own).expect("the value can be written as JSON");
    let (ranks, all) = (bootstrap.ranks(), bootstrap.all_gather(&own)?);
    if all.len() != ranks {
        return Err(Error::Launch(format!(
            "the bootstrap's all-gather returned {} values in a world of {ranks} ranks",
            all.len()
        )));
    }
    let read = |text: &Vec<u8>| serde_json::from_slice(text).ok();
    let other = || Error::Launch("the ranks of this world run different versions of unisono".to_owned());
    all.iter().map(read).collect::<Option<_>>().ok_or_else(other)
}

/// All-gathers bytes, whose number may differ between ranks, by a function that gathers the same number from all ranks. All ranks call it.
pub fn gather_padded(own: &[u8], mut gather: impl FnMut(&[u8]) -> Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    let sizes = gather(&own.len().to_ne_bytes())?;
    let sizes: Vec<_> = sizes.as_chunks().0.iter().map(|size| usize::from_ne_bytes(*size)).collect();
    let longest = sizes.iter().copied().max().unwrap_or(0).max(1);
    let mut padded = own.to_vec();
    padded.resize(longest, 0);
    let all = gather(&padded)?;
    Ok(all.chunks(longest).zip(sizes).map(|(bytes, size)| bytes[..size].to_vec()).collect())
}

/// All-gathers a value of each rank, or returns the error of the first rank that has one. All ranks call it.
pub(crate) fn gather_results<T: Serialize + DeserializeOwned>(
    bootstrap: &mut dyn Bootstrap,
    own: &Result<T, String>,
) -> Result<Result<Vec<T>, String>> {
    Ok(gather(bootstrap, own)?.into_iter().collect())
}

/// A wait for other ranks to begin, which is reported once and ends after a timeout.
#[derive(Debug)]
struct Start {
    began: Instant,
    timeout: Duration,
    has_reported: bool,
}

impl Start {
    fn new(timeout: Duration) -> Self {
        Self { began: Instant::now(), timeout, has_reported: false }
    }

    /// Reports a long wait, if this rank `reports`.
    ///
    /// # Errors
    /// [`Error::Launch`] with the report, after the timeout.
    fn check(&mut self, reports: bool, report: impl FnOnce(Duration) -> String) -> Result<()> {
        let waited = self.began.elapsed();
        if waited > self.timeout {
            return Err(Error::Launch(report(waited)));
        }
        if reports && waited > WARN_AFTER && !std::mem::replace(&mut self.has_reported, true) {
            print_line(&report(waited));
        }
        Ok(())
    }
}

/// Returns the report of a rank that waits for others to begin, with a question about the likely causes.
pub(super) fn not_begun(rank: &str, waited: Duration, missing: &str, question: &str) -> String {
    format!("{rank} has waited {} s for {missing} to begin: {question}", waited.as_secs())
}

/// Runs the program's callback for waits, if it has one.
fn idle(rank: Rank) -> Result<()> {
    while_waiting::run().map_err(|cause| Error::Aborted { rank, by: rank, cause })
}

#[cfg(test)]
pub(super) mod tests {
    pub(in crate::transport) mod pair;
}
