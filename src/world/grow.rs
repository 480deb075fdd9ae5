//! [`Communicator::grow`] and [`Unisono::join`]: a world with more processes.

use std::path::Path;

use super::{Builder, Unisono, meet};
use crate::communicator::{Communicator, Growing, join};
use crate::config::{Config, Constants, DEFAULT_TIMEOUT, secret};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::transport::{Bootstrap, Fabric};

impl Communicator {
    /// Returns a communicator of these ranks and of `more` processes, which call [`Unisono::join`] with the same address: the path of a
    /// Unix socket, or `host:port` of rank 0's machine for processes of any machine. All ranks call it. The ranks keep their numbers, and
    /// those that join follow. This communicator remains usable, as after [`Communicator::split`], and the new one is independent of it.
    ///
    /// Rank 0 listens there only until the processes have joined. It admits processes that have the secret of the job
    /// (`UNISONO_SECRET`). At a path, it admits processes of its own user only, and the secret may be empty. A port that other
    /// machines can reach needs a secret.
    ///
    /// ```
    /// use unisono::{Communicator, ReduceOp, Result, Unisono};
    ///
    /// fn sum(mut comm: Communicator) -> Result<u64> {
    ///     let mut sum = [1_u64];
    ///     comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///     Ok(sum[0])
    /// }
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// let path = folder.path().join("world");
    /// std::thread::scope(|scope| {
    ///     // Usually another process.
    ///     let joins = scope.spawn(|| Unisono::join(&path).and_then(sum));
    ///     let sums = unisono::threads(2, |mut comm| comm.grow(1, &path).and_then(sum));
    ///     assert!(sums.into_iter().chain([joins.join().unwrap()]).all(|sum| sum.unwrap() == 3));
    /// });
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`], before anything happens, for worlds that cannot [shrink](Communicator::shrink), and for declared
    /// nodes. [`Error::OnRank0`], on all ranks, if the processes do not join within [the timeout](Communicator::set_timeout);
    /// [`Error::Launch`] if one of them fails meanwhile or runs another version of the library, and [`Error::Setting`] if its settings
    /// differ. If a rank cannot set up the new world, it returns the cause, and the others [`Error::Launch`]. After these errors, this
    /// communicator remains usable. As [`Communicator::all_reduce`] if a rank fails.
    pub fn grow(&mut self, more: usize, address: impl AsRef<Path>) -> Result<Self> {
        let mut growing = self.wait_for_joins(more, address.as_ref())?;
        grown(&mut growing).inspect_err(|error| growing.refuse(error))
    }
}

fn grown(growing: &mut Growing<'_>) -> Result<Communicator> {
    let mut comm = Communicator::of_growing(growing)?;
    set_up(&mut comm, growing, false)?;
    Ok(comm)
}

/// Sets the values that must be identical on all ranks of a grown world, and the guard of this rank, which may have joined.
fn set_up(comm: &mut Communicator, bootstrap: &mut dyn Bootstrap, joins: bool) -> Result<()> {
    comm.set_as_rank_0(bootstrap)?;
    comm.choose_gpu(bootstrap, joins)?;
    meet(comm, bootstrap)?;
    // Either all ranks complete this, or none has this world.
    bootstrap.all_gather(&[]).map(drop)
}

impl Unisono {
    /// Joins a world that [grows](Communicator::grow), with settings from the environment: [`Builder::join`].
    ///
    /// # Errors
    /// As [`Builder::join`].
    pub fn join(address: impl AsRef<Path>) -> Result<Communicator> {
        Self::builder().join(address)
    }
}

impl Builder {
    /// Joins a world that [grows](Communicator::grow) at this path of a Unix socket, or at this `host:port`, as one of its last
    /// ranks. Waits for it at most for the timeout of a call. The algorithm choice and the timeouts are those of the world.
    ///
    /// # Errors
    /// [`Error::Launch`] if no world of this user and job grows there in time, or it fails meanwhile; [`Error::Setting`] for invalid
    /// settings, and if they differ from those of the world.
    pub fn join(self, address: impl AsRef<Path>) -> Result<Communicator> {
        // Algorithm and constants are those of the world.
        let of_world =
            |config| Config { algorithm: None, constants: Constants::Default, warnings: false, ..config };
        let config = self.config().map(of_world);
        let timeout = config.as_ref().map_or_else(|_| DEFAULT_TIMEOUT, |config: &Config| config.timeout);
        let (mut joining, connects) = join(address.as_ref(), &secret(), timeout)?;
        let config = config.map(|config| Config { connects, ..config });
        let (transport, config) = Fabric::processes(&mut joining, config)?;
        let mut comm = Communicator::new(transport, &config)?;
        set_up(&mut comm, &mut joining, true)?;
        Ok(comm)
    }
}
