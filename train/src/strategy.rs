//! How the ranks of a world share the work of training.

use std::fmt;

use unisono::Communicator;

use crate::error::TrainError;
use crate::server::ServerSettings;

/// How ranks train together: TensorFlow's strategies, by their names. The model, the data and the loop are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// One rank alone.
    OneDevice,
    /// Every rank of one node holds the same model, and gradients are all-reduced.
    Mirrored,
    /// The same on any number of nodes.
    MultiWorkerMirrored,
    /// Some ranks hold the parameters, the others compute gradients.
    ParameterServer(ServerSettings),
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneDevice => "one-device",
            Self::Mirrored => "mirrored",
            Self::MultiWorkerMirrored => "multi-worker-mirrored",
            Self::ParameterServer(_) => "parameter-server",
        })
    }
}

impl Strategy {
    /// The mirrored strategy that suits a world.
    pub fn suited(comm: &Communicator) -> Self {
        match (comm.ranks(), comm.topology().nodes()) {
            (1, _) => Self::OneDevice,
            (_, 1) => Self::Mirrored,
            _ => Self::MultiWorkerMirrored,
        }
    }

    /// Refuses a world that the strategy is not for. All ranks find the same.
    ///
    /// # Errors
    /// [`TrainError::Setting`].
    pub fn check(self, comm: &Communicator) -> Result<(), TrainError> {
        let (ranks, nodes) = (comm.ranks(), comm.topology().nodes());
        let (is_fit, expected) = match self {
            Self::OneDevice => (ranks == 1, "one rank: start it without a launcher"),
            Self::Mirrored => (nodes == 1, "one node: use multi-worker-mirrored"),
            Self::ParameterServer(_) => {
                (ranks > 1, "a server and a worker: start it under a launcher, with at least two ranks")
            }
            Self::MultiWorkerMirrored => (true, ""),
        };
        if is_fit {
            return Ok(());
        }
        Err(TrainError::Setting(format!(
            "the strategy {self} is for {expected}; this world has {ranks} ranks on {nodes} nodes"
        )))
    }

    /// How many ranks of so many compute gradients, at least one.
    pub fn workers(self, ranks: usize) -> usize {
        match self {
            Self::ParameterServer(servers) => ranks.saturating_sub(servers.servers).max(1),
            _ => ranks,
        }
    }
}
