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
        Ok(Growing { world: self, ranks, joining, refused: false })
    }
}

/// The bootstrap of a world with processes that join, for the existing ranks.
#[derive(Debug)]
pub(crate) struct Growing<'a> {
    pub(crate) world: &'a mut Communicator,
    ranks: usize,
    /// On rank 0, the connections with the processes that join.
    joining: Vec<Connection>,
    /// Whether an error was reported to all ranks, after which the world is unchanged.
    refused: bool,
}

impl Growing<'_> {
    /// Returns whether an all-gather failed because of a process that joins, on all ranks.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns the bytes that this rank contributes to an all-gather: its own, and on rank 0 those of the processes
    /// that join.
    fn contribution(&mut self, own: &[u8]) -> std::result::Result<Vec<Vec<u8>>, String> {
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
        let mut gathered = gather_results(&mut self.world.as_bootstrap(), &contribution)?.map_err(|why| {
            self.refused = true;
            Error::Launch(why)
        })?;
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

    /// Marks this communicator as lost after an error that other ranks may not have got.
    pub(crate) fn settle<R>(&mut self, ended: Result<R>) -> Result<R> {
        self.engine_owner.engine().settle(ended)
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
    /// Connects to rank 0 of a growing world, and waits for its rank number.
    ///
    /// # Errors
    /// [`Error::Launch`] if no world grows there within the timeout, or it belongs to another user or job.
    pub(crate) fn at(path: &Path, timeout: std::time::Duration) -> Result<Self> {
        let mut connection = Connection::to(path, &secret(), timeout)?;
        let failed = |cause| Error::Launch(format!("cannot join at {}: {cause}", path.display()));
        let (rank, ranks, connects) = connection.receive().map_err(failed)?;
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
