//! The bootstrap of a world's ranks with the processes that join it, and the settings that these receive. Rank 0 forwards the gathered bytes.

use std::path::Path;

use unisono_collectives::Rank;

use super::Communicator;
use crate::collective::Limits;
use crate::config::secret;
use crate::control::framed;
use crate::error::{Error, Result};
use crate::transport::{Bootstrap, Fabric, Rendezvous, gather, gather_results};
use crate::tuning::Tuning;

mod socket;

use socket::JoinListener;
pub(crate) use socket::join;

/// More processes than any system starts.
const MOST_JOINS: usize = 1 << 20;

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
        if more > MOST_JOINS {
            return Err(Error::Unsupported(format!(
                "a world cannot grow by {more} ranks, more than {MOST_JOINS}"
            )));
        }
        let own = format!("grow by {more} at {}", path.display());
        let all = gather(&mut self.as_bootstrap("grow"), &own)?;
        self.check_same("grow", &all, |rank| all[rank].clone())?;
        let timeout = self.per_call.options.timeout.unwrap_or(self.engine_owner.limits().usual.timeout);
        let joining = self.on_rank0(WAITS_FOR_JOINS, || {
            let mut listener = JoinListener::at(path, &secret())
                .map_err(|cause| Error::Launch(format!("cannot listen at {}: {cause}", path.display())))?;
            listener.wait_for(more, timeout)
        })?;
        let (mut joining, ranks) = (joining.unwrap_or_default(), self.ranks() + more);
        for (peer, rank) in joining.iter_mut().zip(self.ranks()..) {
            let first = serde_json::to_vec(&(rank, ranks, self.connects())).expect("JSON can represent it");
            // The first all-gather sends the rest, and detects a closed connection.
            peer.queue(framed(&first));
            let _ = peer.flush();
        }
        let joining = Rendezvous::over(joining, (self.rank(), ranks), timeout);
        Ok(Growing { world: self, joining, is_refused: false })
    }
}

/// The bootstrap of a world with processes that join, for the existing ranks.
#[derive(Debug)]
pub(crate) struct Growing<'a> {
    pub(crate) world: &'a mut Communicator,
    /// On rank 0, the connections with the processes that join.
    joining: Rendezvous,
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

    /// Gathers the contributions of the ranks, or the reason for which the first of them refuses, and sends either to the processes that join.
    fn gather(&mut self, contribution: &Result<Vec<Vec<u8>>, String>) -> Result<Vec<Vec<u8>>> {
        let gathered = gather_results(&mut self.world.as_bootstrap("grow"), contribution);
        self.is_refused = matches!(gathered, Ok(Err(_)));
        let in_order = |mut gathered: Vec<Vec<_>>| {
            let joining = gathered[0].split_off(1);
            gathered.into_iter().flatten().chain(joining).collect()
        };
        let all = gathered.and_then(|gathered| gathered.map_err(Error::Launch)).map(in_order);
        // The next all-gather detects a closed connection. The other ranks wait there, while this one may wait here.
        let _ = self.world.quiet(WAITS_FOR_JOINS, |_| self.joining.answer(&all));
        all
    }
}

impl Bootstrap for Growing<'_> {
    fn rank(&self) -> Rank {
        self.world.rank()
    }

    fn ranks(&self) -> usize {
        self.joining.ranks()
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        // Rank 0 contributes the bytes of the processes that join too. The other ranks wait for it, while it may wait for its timeout here.
        let contribution = self.world.quiet(WAITS_FOR_JOINS, |_| self.joining.gather(own));
        let refused = |error| match error {
            Error::Aborted { by: by @ 1.., cause, .. } => {
                format!("rank {by}, which joins, has failed: {cause}")
            }
            error => format!("a process that joins has failed: {error}"),
        };
        self.gather(&contribution.map_err(refused))
    }

    fn has_failed(&self) -> bool {
        self.world.has_failed()
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

    /// Applies the settings of rank 0: the algorithm choice, the timeouts, the constants of the cost model, and the minimum number of ranks. All
    /// ranks call it.
    pub(crate) fn set_as_rank_0(&mut self, bootstrap: &mut dyn Bootstrap) -> Result<()> {
        let (tuning, cores) = &self.constants;
        let (limits, minimum_ranks) = (self.engine_owner.limits(), self.minimum_ranks);
        let own = (limits, self.choice.to_string(), tuning.text(), *cores, minimum_ranks);
        let (limits, choice, tuning, cores, minimum_ranks): (Limits, String, _, _, _) =
            gather(bootstrap, &own)?.swap_remove(0);
        let other = || Error::Launch("rank 0 has another version of unisono".to_owned());
        self.engine_owner.set_limits(limits);
        self.minimum_ranks = minimum_ranks;
        self.choice = choice.parse().map_err(|_| other())?;
        self.set_constants((Tuning::of_text(&tuning).map_err(Error::Launch)?, cores));
        Ok(())
    }

    /// Determines the GPU of a rank that joins (`joins`): the first of its node that no other rank uses. All ranks call it.
    pub(crate) fn choose_gpu(&mut self, bootstrap: &mut dyn Bootstrap, joins: bool) -> Result<()> {
        let all = gather(bootstrap, &(!joins).then_some(self.local_rank))?;
        if joins {
            let node = self.topology.node(self.topology.node_of(self.rank));
            let gpus: Vec<_> = node.members().iter().map(|&rank| all[rank]).collect();
            self.local_rank = with_free_gpus(&gpus)[self.topology.local_rank(self.rank)];
        }
        Ok(())
    }
}

/// Returns the GPUs of the ranks of a node. Those that join have none yet, and get the lowest that are free.
fn with_free_gpus(gpus: &[Option<usize>]) -> Vec<usize> {
    let mut free = (0..).filter(|gpu| !gpus.contains(&Some(*gpu)));
    gpus.iter().map(|gpu| gpu.unwrap_or_else(|| free.next().expect("numbers do not end"))).collect()
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
            scope.spawn(|| join(&path, b"", TIMEOUT).unwrap().0.all_gather(b"an unreadable digest").unwrap());
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

    #[test]
    fn rank_that_joins_gets_the_gpu_of_the_one_that_was_lost() {
        assert_eq!(with_free_gpus(&[Some(0), Some(2), Some(3), None]), [0, 2, 3, 1]);
        assert_eq!(with_free_gpus(&[Some(1), None, None]), [1, 0, 2]);
    }
}
