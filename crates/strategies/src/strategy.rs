//! The strategies that divide the work of training among the ranks of a world.

use std::fmt;

use unisono::Communicator;
use unisono_collectives::named;

use unisono_train::TrainError;

use crate::server::ServerSettings;
use unisono_steps::pipeline::PipelineSchedule;

named! {
    /// The kind of a strategy, without its settings.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum StrategyKind: "strategy" {
        /// [`Strategy::OneDevice`].
        OneDevice = "one-device",
        /// [`Strategy::Mirrored`].
        Mirrored = "mirrored",
        /// [`Strategy::MultiWorkerMirrored`].
        MultiWorkerMirrored = "multi-worker-mirrored",
        /// [`Strategy::CentralStorage`].
        CentralStorage = "central-storage",
        /// [`Strategy::ParameterServer`].
        ParameterServer = "parameter-server",
        /// [`Strategy::Pipeline`].
        Pipeline = "pipeline",
    }
}

/// The strategies of training, named as in TensorFlow. The model, the data and the loop are the same for all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// A single rank.
    OneDevice,
    /// Every rank of a single node holds the same model, and gradients are all-reduced.
    Mirrored,
    /// Mirrored training on any number of nodes.
    MultiWorkerMirrored,
    /// The ranks of one node share one copy of the parameters, their gradients and the optimizer state.
    CentralStorage,
    /// Some ranks hold the parameters, and the others compute gradients.
    ParameterServer(ServerSettings),
    /// The model is cut into stages of consecutive layers, each on separate ranks.
    Pipeline(PipelineSettings),
}

/// The cuts of a model into stages, and the schedule of their micro-batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineSettings {
    /// The number of ranks of a pipeline; `None` for all. Several pipelines are replicas of each other.
    pub ranks: Option<usize>,
    /// The order of passes, and the number of stages of each rank.
    pub schedule: PipelineSchedule,
    /// The number of micro-batches into which a pipeline cuts its part of a step, at most one for each sample. `None` for four for each rank of the
    /// pipeline, which suffices for a small bubble (Huang et al., "GPipe", 2019, section 2.3).
    pub micro_batches: Option<usize>,
    /// The names of the first layers of all stages but the first. `None` to measure the costs of layers, and to cut evenly.
    pub split_at: Option<Vec<String>>,
}

impl Default for PipelineSettings {
    /// Returns one pipeline of all ranks, with the schedule 1F1B.
    fn default() -> Self {
        let schedule = PipelineSchedule::OneForwardOneBackward;
        Self { ranks: None, schedule, micro_batches: None, split_at: None }
    }
}

impl PipelineSettings {
    /// Returns the number of ranks of a pipeline in a world of this many ranks.
    pub fn length(&self, ranks: usize) -> usize {
        self.ranks.unwrap_or(ranks).max(1)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

impl Strategy {
    /// Returns the kind of the strategy.
    pub fn kind(&self) -> StrategyKind {
        match self {
            Self::OneDevice => StrategyKind::OneDevice,
            Self::Mirrored => StrategyKind::Mirrored,
            Self::MultiWorkerMirrored => StrategyKind::MultiWorkerMirrored,
            Self::CentralStorage => StrategyKind::CentralStorage,
            Self::ParameterServer(_) => StrategyKind::ParameterServer,
            Self::Pipeline(_) => StrategyKind::Pipeline,
        }
    }

    /// Returns the mirrored strategy that suits a world.
    pub fn suited(comm: &Communicator) -> Self {
        match (comm.ranks(), comm.topology().nodes()) {
            (1, _) => Self::OneDevice,
            (_, 1) => Self::Mirrored,
            _ => Self::MultiWorkerMirrored,
        }
    }

    /// Refuses a world that the strategy does not support. The result is the same on all ranks.
    ///
    /// # Errors
    /// [`TrainError::Setting`].
    pub fn check(&self, comm: &Communicator) -> Result<(), TrainError> {
        let (ranks, nodes) = (comm.ranks(), comm.topology().nodes());
        let (is_fit, expected) = match self {
            Self::OneDevice => (ranks == 1, "one rank: start it without a launcher"),
            Self::Mirrored => (nodes == 1, "one node: use multi-worker-mirrored"),
            Self::CentralStorage => {
                (nodes == 1, "one node, whose ranks share memory: use multi-worker-mirrored")
            }
            Self::ParameterServer(_) => {
                (ranks > 1, "a server and a worker: start it under a launcher, with at least two ranks")
            }
            Self::Pipeline(
                PipelineSettings { ranks: Some(0), .. } | PipelineSettings { micro_batches: Some(0), .. },
            ) => (false, "pipelines of at least one rank (--stages) and one micro-batch (--micro-batches)"),
            Self::Pipeline(pipeline) => {
                let length = pipeline.length(ranks);
                (ranks.is_multiple_of(length), &*format!("a multiple of the {length} ranks of a pipeline"))
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

    /// Returns the number of ranks that compute gradients, at least one, given the number of all ranks.
    pub fn workers(&self, ranks: usize) -> usize {
        match self {
            Self::ParameterServer(servers) => ranks.saturating_sub(servers.servers).max(1),
            _ => ranks,
        }
    }

    /// Returns the number of replicas of the model that share the samples of a step, given the number of ranks.
    pub fn replicas(&self, ranks: usize) -> usize {
        match self {
            Self::Pipeline(pipeline) => (ranks / pipeline.length(ranks)).max(1),
            _ => self.workers(ranks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipeline_without_ranks_or_micro_batches_is_refused() {
        let usual = PipelineSettings::default;
        for settings in [
            PipelineSettings { ranks: Some(0), ..usual() },
            PipelineSettings { micro_batches: Some(0), ..usual() },
        ] {
            let checked = unisono::threads(1, |comm| Strategy::Pipeline(settings.clone()).check(&comm));
            let why = checked[0].as_ref().unwrap_err().to_string();
            assert!(why.contains("at least one rank (--stages) and one micro-batch"), "{why}");
        }
    }
}
