//! The strategies that divide the work of training among the ranks of a world.

use unisono::Communicator;
use unisono_collectives::named;

use unisono_train::TrainError;

named! {
    /// The strategies of training, named as in TensorFlow. The model, the data and the loop are the same for all of them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Strategy: "strategy" {
        /// A single rank.
        OneDevice = "one-device",
        /// Every rank of a single node holds the same model, and gradients are all-reduced.
        Mirrored = "mirrored",
        /// Mirrored training on any number of nodes.
        MultiWorkerMirrored = "multi-worker-mirrored",
        /// The ranks of one node share one copy of the parameters, their gradients and the optimizer state.
        CentralStorage = "central-storage",
        /// Some ranks hold the parameters, and the others compute gradients.
        ParameterServer = "parameter-server",
        /// The model is cut into stages of consecutive layers, each on separate ranks.
        Pipeline = "pipeline",
    }
}

impl Strategy {
    /// Returns the mirrored strategy that suits a world.
    pub fn suited(comm: &Communicator) -> Self {
        match (comm.ranks(), comm.topology().nodes()) {
            (1, _) => Self::OneDevice,
            (_, 1) => Self::Mirrored,
            _ => Self::MultiWorkerMirrored,
        }
    }

    /// Refuses a world that the strategy does not support. `length` is the number of ranks of a pipeline. The result is the same on all ranks.
    ///
    /// # Errors
    /// [`TrainError::Setting`].
    pub fn check(self, comm: &Communicator, length: usize) -> Result<(), TrainError> {
        let (ranks, nodes) = (comm.ranks(), comm.topology().nodes());
        let (is_fit, expected) = match self {
            Self::OneDevice => (ranks == 1, "one rank: start it without a launcher"),
            Self::Mirrored => (nodes == 1, "one node: use multi-worker-mirrored"),
            Self::CentralStorage => {
                (nodes == 1, "one node, whose ranks share memory: use multi-worker-mirrored")
            }
            Self::ParameterServer => {
                (ranks > 1, "a server and a worker: start it under a launcher, with at least two ranks")
            }
            Self::Pipeline => {
                (ranks.is_multiple_of(length), &*format!("a multiple of the {length} ranks of a pipeline"))
            }
            Self::MultiWorkerMirrored => (true, ""),
        };
        if is_fit {
            return Ok(());
        }
        let counted =
            |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let (ranks, nodes) = (counted(ranks, "rank"), counted(nodes, "node"));
        Err(TrainError::Setting(format!(
            "the strategy {self} is for {expected}; this world has {ranks} on {nodes}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_counts_ranks_and_nodes() {
        let refused = |strategy: Strategy, ranks| {
            unisono::threads(ranks, |comm| strategy.check(&comm, 2).unwrap_err().to_string()).remove(0)
        };
        assert!(refused(Strategy::ParameterServer, 1).ends_with("this world has 1 rank on 1 node"));
        assert!(refused(Strategy::Pipeline, 3).ends_with("this world has 3 ranks on 1 node"));
    }
}
