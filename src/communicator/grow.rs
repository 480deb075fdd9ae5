//! The bootstrap of a world's ranks with the processes that join it. Rank 0 forwards the gathered bytes.

use std::path::Path;

use unisono_collectives::Rank;

use super::Communicator;
use crate::config::secret;
use crate::error::{Error, Result};
use crate::transport::{Bootstrap, Fabric, gather, gather_results};

mod settings;
mod socket;

use socket::{Connection, JoinListener};

/// The label of rank 0's waits for processes that join.
const WAITS_FOR_JOINS: &str = "waiting for processes that join";

impl Communicator {
    /// Waits for `more` processes that join at a path. All ranks call it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this world cannot grow; [`Error::OnRank0`], on all ranks, if the processes do not join; as
    /// [`Communicator::all_reduce`].
    pub(crate) fn wait_for_joins(&mut self, more: usize, path: &Path) -> Result<Growing<'_>> {
        self.check_can_change("grow")?;
        if self.config.nodes.is_some() {
            return Err(Error::Unsupported("a world of declared nodes cannot grow".to_owned()));
        }
        let own = format!("grow by {more} at {}", path.display());
        let all = gather(&mut self.as_bootstrap(), &own)?;
        self.check_same("grow", &all, String::clone)?;
        let timeout = self.per_call.options.timeout.unwrap_or(self.engine_owner.limits().usual.timeout);
        let joining = self.on_rank0(WAITS_FOR_JOINS, || {
            let mut listener = JoinListener::at(path, &secret())
                .map_err(|cause| Error::Launch(format!("cannot listen at {}: {cause}", path.display())))?;
            listener.wait_for(more, timeout)
        })?;
        let mut joining = joining.unwrap_or_default();
        let ranks = self.ranks() + more;
        for (connection, rank) in joining.iter_mut().zip(self.ranks()..) {
            // The first all-gather detects a closed connection.
            let _ = connection.send(&(rank, ranks, self.connects()));
        }
        Ok(Growing { world: self, ranks, joining, is_refused: false })
    }
}

/// The bootstrap of a world with processes that join, for the existing ranks.
#[derive(Debug)]
pub(crate) struct Growing<'a> {
    pub(crate) world: &'a mut Communicator,
    ranks: usize,
    /// On rank 0, the connections with the processes that join.
    joining: Vec<Connection>,
    /// Whether all ranks have received an error, and no rank waits for another.
    is_refused: bool,
}

impl Growing<'_> {
    /// Makes the next all-gather fail on the other ranks for this reason. The world is then unchanged.
    pub(crate) fn refuse(&mut self, why: &Error) {
        if !self.is_refused {
            // If it fails on this rank too, the world is lost, or every rank refuses.
            let _ = self.gather(&Err(why.to_string()));
        }
    }

    /// Gathers the contributions of the ranks, or the reason for which the first of them refuses.
    fn gather(&mut self, contribution: &Result<Vec<Vec<u8>>, String>) -> Result<Vec<Vec<Vec<u8>>>> {
        let gathered = gather_results(&mut self.world.as_bootstrap(), contribution)?;
        self.is_refused = gathered.is_err();
        gathered.map_err(Error::Launch)
    }

    /// Returns the bytes that this rank contributes to an all-gather: its own, and on rank 0 those of the processes
    /// that join.
    fn contribution(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mut contribution = vec![own.to_vec()];
        for (rank, connection) in (self.world.ranks()..).zip(&mut self.joining) {
            let failed = |cause| format!("the process that joins as rank {rank} has failed: {cause}");
            // The other ranks wait for rank 0, which may wait for its timeout here.
            let received = self.world.quiet(WAITS_FOR_JOINS, |_| connection.receive());
            contribution.push(received.map_err(failed)?);
        }
        Ok(contribution)
    }
}

impl Bootstrap for Growing<'_> {
    fn rank(&self) -> Rank {
        self.world.rank()
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let contribution = self.contribution(own);
        let mut gathered = self.gather(&contribution)?;
        let joining = gathered[0].split_off(1);
        let all: Vec<_> = gathered.into_iter().flatten().chain(joining).collect();
        for connection in &mut self.joining {
            // The next all-gather detects a closed connection. The other ranks wait there, while this one may wait for its timeout here.
            let _ = self.world.quiet(WAITS_FOR_JOINS, |_| connection.send(&all));
        }
        Ok(all)
    }
}

impl Communicator {
    /// Returns the communicator of a world that has grown, without a guard. All ranks call it.
    pub(crate) fn of_growing(growing: &mut Growing<'_>) -> Result<Self> {
        let world = &mut *growing.world;
        world.groups += 1;
        let members: Vec<_> = (0..world.ranks()).collect();
        let config = world.config_among(&members, &format!("grown-{}", world.groups));
        let (transport, config) = Fabric::processes(growing, Ok(config))?;
        let mut grown = growing.world.derived(transport, &config)?;
        grown.minimum_ranks = growing.world.minimum_ranks;
        Ok(grown)
    }
}

/// The bootstrap of a growing world, for a process that joins.
#[derive(Debug)]
pub(crate) struct Joining {
    connection: Connection,
    rank: Rank,
    ranks: usize,
    /// Whether the ranks of the world that grows are connected, even if they share memory.
    pub(crate) connects: bool,
}

impl Joining {
    /// Connects to rank 0 of a growing world, and waits for its rank number. If the world needs no more processes, it waits for the next
    /// growth.
    ///
    /// # Errors
    /// [`Error::Launch`] if no world grows there within the timeout, or it belongs to another user or job.
    pub(crate) fn at(path: &Path, timeout: std::time::Duration) -> Result<Self> {
        let (connection, (rank, ranks, connects)) = Connection::to(path, &secret(), timeout)?;
        Ok(Self { connection, rank, ranks, connects })
    }
}

impl Bootstrap for Joining {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let gathered = self.connection.send(&own).and_then(|()| self.connection.receive());
        gathered.map_err(|cause| {
            let rank = self.rank;
            Error::Launch(format!(
                "the world does not admit rank {rank}: rank 0 has closed the connection: {cause}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn world_continues_after_a_process_of_another_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("world");
        std::thread::scope(|scope| {
            scope.spawn(|| Joining::at(&path, TIMEOUT).unwrap().all_gather(b"an unreadable digest").unwrap());
            let errors = crate::threads(2, |mut comm| {
                let error = comm.grow(1, &path).unwrap_err();
                comm.barrier().unwrap();
                error.to_string()
            });
            assert_eq!(errors, ["the ranks of this world run different versions of unisono"; 2]);
        });
    }

    #[test]
    fn world_continues_if_a_rank_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("world");
        let errors = crate::threads(2, |mut comm| {
            let mut growing = comm.wait_for_joins(0, &path).unwrap();
            let error = if growing.rank() == 0 {
                growing.all_gather(b"").unwrap_err().to_string()
            } else {
                growing.refuse(&Error::Launch("the disk is full".to_owned()));
                String::new()
            };
            comm.barrier().unwrap();
            error
        });
        assert_eq!(errors, ["the disk is full", ""]);
    }
}
