//! The strategies by which the ranks of a world share the work of training.

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

/// The strategies of training: TensorFlow's, by their names. The model, the data and the loop are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// One rank alone.
    OneDevice,
    /// Every rank of one node holds the same model, and gradients are all-reduced.
    Mirrored,
    /// Mirrored training on any number of nodes.
    MultiWorkerMirrored,
    /// The ranks of one node share one copy of the parameters, their gradients and the optimizer state.
    CentralStorage,
    /// Some ranks hold the parameters, the others compute gradients.
    ParameterServer(ServerSettings),
    /// The model is cut into stages of consecutive layers, each on ranks of its own.
    Pipeline(PipelineSettings),
}

/// The cuts of a model into stages, and the schedule of their micro-batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineSettings {
    /// The ranks of a pipeline; `None` for all. Several pipelines are replicas of each other.
    pub ranks: Option<usize>,
    /// The order of passes, and the stages of each rank.
    pub schedule: PipelineSchedule,
    /// Into how many micro-batches a pipeline cuts its part of a step, at most one for each sample; `None` for four for each rank of the
    /// pipeline, from which on the bubble is small (Huang et al., "GPipe", 2019, section 2.3).
    pub micro_batches: Option<usize>,
    /// The names of the layers that stages begin with, but for the first; `None` to measure what layers cost, and cut evenly.
    pub split_at: Option<Vec<String>>,
}

impl Default for PipelineSettings {
    /// One pipeline of all ranks, 1F1B.
    fn default() -> Self {
        let schedule = PipelineSchedule::OneForwardOneBackward;
        Self { ranks: None, schedule, micro_batches: None, split_at: None }
    }
}

impl PipelineSettings {
    /// Returns the ranks of a pipeline in a world of this many.
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

    /// Refuses a world that the strategy is not for. All ranks find the same.
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

    /// Returns the number of ranks that compute gradients, at least one, of this many.
    pub fn workers(&self, ranks: usize) -> usize {
        match self {
            Self::ParameterServer(servers) => ranks.saturating_sub(servers.servers).max(1),
            _ => ranks,
        }
    }

    /// Among how many replicas of the model on this many ranks the samples of a step are shared.
    pub fn replicas(&self, ranks: usize) -> usize {
        match self {
            Self::Pipeline(pipeline) => (ranks / pipeline.length(ranks)).max(1),
            _ => self.workers(ranks),
        }
    }
}
