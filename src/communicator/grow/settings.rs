//! The settings that a joining process receives from rank 0: the algorithm choice, the timeouts, the constants of the cost model, and
//! the minimum number of ranks.

use crate::collective::Limits;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::transport::{Bootstrap, gather};
use crate::tuning::Tuning;

impl Communicator {
    /// Applies the settings of rank 0. All ranks call it.
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
    use super::with_free_gpus;

    #[test]
    fn rank_that_joins_gets_the_gpu_of_the_one_that_was_lost() {
        assert_eq!(with_free_gpus(&[Some(0), Some(2), Some(3), None]), [0, 2, 3, 1]);
        assert_eq!(with_free_gpus(&[Some(1), None, None]), [1, 0, 2]);
    }
}
