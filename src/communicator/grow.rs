//! The meeting of a world's ranks and the processes that join it: rank 0 passes on what all of them gather.

use std::os::fd::OwnedFd;
use std::path::Path;

use unisono_collectives::Rank;

use super::Communicator;
use crate::config::{Config, secret};
use crate::error::{Error, Result};
use crate::transport::{Bootstrap, Fabric};

mod settings;
mod socket;

use socket::{Connection, JoinListener};

impl Communicator {
    /// Waits for `more` processes that join at a path. All ranks call it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this world cannot grow; [`Error::OnRank0`], on all ranks, if the processes do not come; as
    /// [`Communicator::all_reduce`].
    pub(crate) fn wait_for_joins(&mut self, more: usize, path: &Path) -> Result<Growing<'_>> {
        self.check_can_change("grow")?;
        if self.config.nodes.is_some() {
            return Err(Error::Unsupported("a world of declared nodes cannot grow".to_owned()));
        }
        let own = format!("grow by {more} at {}", path.display());
        let all = self.gather_bytes(own.as_bytes())?;
        let called = |own: &[u8]| String::from_utf8_lossy(own).into_owned();
        self.check_same("grow", &all, |own| own, called)?;
        let timeout = self.seat.engine().limits.usual.timeout;
        let joining = self.on_rank0("waiting for processes that join", || {
            let mut listener = JoinListener::at(path, &secret())
                .map_err(|cause| Error::Launch(format!("cannot listen at {}: {cause}", path.display())))?;
            listener.wait_for(more, timeout)
        })?;
        let mut joining = joining.unwrap_or_default();
        let ranks = self.ranks() + more;
        for (connection, rank) in joining.iter_mut().zip(self.ranks()..) {
            // If it has gone, that is seen in the first all-gather.
            let numbers = [rank, ranks, self.connects().into()];
            let _ = connection.send(&encoded(&numbers.map(|number| (number as u64).to_le_bytes().to_vec())));
        }
        Ok(Growing { world: self, ranks, joining, refused: false })
    }
}

/// The bootstrap of a world with processes that join, for the ranks that are there.
#[derive(Debug)]
pub(crate) struct Growing<'a> {
    pub(crate) world: &'a mut Communicator,
    ranks: usize,
    /// On rank 0, those that join.
    joining: Vec<Connection>,
    /// Whether all ranks know of an error, after which the world is as before.
    refused: bool,
}

impl Growing<'_> {
    /// Returns whether the error of an all-gather was that of a process that joins, as all ranks know.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns the bytes that this rank contributes to an all-gather: its own, and on rank 0 those of the processes
    /// that join.
    fn given(&mut self, own: &[u8]) -> Vec<u8> {
        let mut given = vec![own.to_vec()];
        for (rank, connection) in (self.world.ranks()..).zip(&mut self.joining) {
            match connection.receive() {
                Ok(bytes) => given.push(bytes),
                Err(cause) => {
                    return format!("{REFUSAL}the process that joins as rank {rank} has failed: {cause}")
                        .into();
                }
            }
        }
        encoded(&given)
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
        let given = self.given(own);
        let given = self.world.gather_bytes(&given)?;
        if let Some(why) = given[0].strip_prefix(REFUSAL.as_bytes()) {
            self.refused = true;
            return Err(Error::Launch(String::from_utf8_lossy(why).into_owned()));
        }
        let mut given = given.iter().map(|given| decoded(given).expect("a rank of this program encoded it"));
        let mut all = given.next().expect("there is a rank 0");
        let joining = all.split_off(1);
        all.extend(given.flatten());
        all.extend(joining);
        let passed_on = encoded(&all);
        // If one has gone, that is seen in the next all-gather.
        self.joining.iter_mut().for_each(|connection| drop(connection.send(&passed_on)));
        Ok(all)
    }
}

impl Communicator {
    /// Returns the communicator of a world that has grown, not watched over yet. All ranks call it.
    pub(crate) fn of_growing(growing: &mut Growing<'_>) -> Result<(Self, Controls)> {
        let world = &mut *growing.world;
        world.groups += 1;
        let members: Vec<_> = (0..world.ranks()).collect();
        let config = world.config_among(&members, &format!("grown-{}", world.groups));
        let (mut transport, config) = Fabric::processes(growing, Ok(config))?;
        let controls = transport.take_controls();
        Ok((growing.world.heir(transport, &config)?, controls))
    }

    /// Returns the communicator of a process that joins, not watched over yet, without [what is set](Self::set_as_rank_0) on
    /// rank 0.
    pub(crate) fn of_joining(transport: Fabric, config: &Config) -> Result<Self> {
        Self::new(transport, config)
    }

    /// Marks this communicator as lost after an error that other ranks may not know.
    pub(crate) fn settle<R>(&mut self, ended: Result<R>) -> Result<R> {
        self.seat.engine().settle(ended)
    }
}

/// The control connections of a rank with ranks of other machines.
type Controls = Vec<(Rank, OwnedFd)>;

/// The bootstrap of such a world, for a process that joins.
#[derive(Debug)]
pub(crate) struct Joining {
    connection: Connection,
    rank: Rank,
    ranks: usize,
    /// Whether the ranks of the world that grows are connected, even if they share memory.
    pub(crate) connects: bool,
}

impl Joining {
    /// Connects to rank 0 of a world that grows, and waits for a rank.
    ///
    /// # Errors
    /// [`Error::Launch`] if there is no such world within the timeout, or it is of another user or job.
    pub(crate) fn at(path: &Path, timeout: std::time::Duration) -> Result<Self> {
        let mut connection = Connection::to(path, &secret(), timeout)?;
        let failed = |cause| Error::Launch(format!("cannot join at {}: {cause}", path.display()));
        let numbers = connection.receive().map_err(|cause| failed(cause.to_string()))?;
        let number = |bytes: Vec<u8>| Some(u64::from_le_bytes(bytes.try_into().ok()?) as usize);
        let numbers =
            decoded(&numbers).and_then(|all| all.into_iter().map(number).collect::<Option<Vec<_>>>());
        match numbers.as_deref() {
            Some(&[rank, ranks, connects]) => Ok(Self { connection, rank, ranks, connects: connects == 1 }),
            _ => Err(failed("it is another version of unisono".to_owned())),
        }
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
        let gathered = self.connection.send(own).and_then(|()| self.connection.receive());
        let failed = |cause| Error::Launch(format!("the world does not take in rank {}: {cause}", self.rank));
        let gathered = gathered.map_err(|cause| failed(format!("rank 0 has ended it: {cause}")))?;
        decoded(&gathered).ok_or_else(|| failed("rank 0 is another version of unisono".to_owned()))
    }
}

/// The prefix of a refusal. No encoded list begins with it: read as a length, it exceeds all that follows.
const REFUSAL: &str = "refused:";

/// Byte strings as one, each after its length.
fn encoded(all: &[Vec<u8>]) -> Vec<u8> {
    all.iter()
        .flat_map(|bytes| (bytes.len() as u64).to_le_bytes().into_iter().chain(bytes.iter().copied()))
        .collect()
}

fn decoded(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
        let (one, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        all.push(one.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_strings_are_one_and_several_again() {
        for all in [vec![], vec![vec![]], vec![vec![1], vec![], vec![2; 300]]] {
            assert_eq!(decoded(&encoded(&all)), Some(all));
        }
        assert_eq!((decoded(&[1]), decoded(&[255; 9]), decoded(REFUSAL.as_bytes())), (None, None, None));
    }
}
