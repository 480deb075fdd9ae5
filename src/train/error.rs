//! What can end a training run.

use unisono_collectives::Rank;

use super::checkpoint::CheckpointError;
#[cfg(feature = "candle")]
use super::model::ModelError;
use super::optimizer::StateError;
use super::replica::ReplicaError;
use crate::data::DataError;

/// Why a training run could not begin, or ended before its time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A setting makes no sense, by itself or for this data.
    #[error("{0}")]
    Setting(String),
    /// The data could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A rank's data could not be read in the midst of a run.
    #[error("rank {rank} cannot go on in epoch {epoch}, step {step}: {error}")]
    Feed {
        /// The rank.
        rank: Rank,
        /// The epoch, from 1.
        epoch: usize,
        /// The step in the epoch, from 1.
        step: usize,
        /// What is wrong.
        error: DataError,
    },
    /// The model could not be built.
    #[cfg(feature = "candle")]
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A checkpoint is of another run.
    #[error("cannot go on from {checkpoint}: {why}")]
    OtherRun {
        /// The checkpoint.
        checkpoint: String,
        /// What does not fit.
        why: String,
    },
    /// Something is wrong on another rank, which says what.
    #[error("something is wrong on rank {rank}")]
    Elsewhere {
        /// The lowest rank where something is wrong.
        rank: Rank,
    },
    /// The framework objects.
    #[error("{0}")]
    Replica(#[from] ReplicaError),
    /// The ranks could not work together.
    #[error(transparent)]
    Collective(#[from] crate::Error),
    /// What is logged could not be written.
    #[error("cannot write {what}: {error}")]
    Log {
        /// The file.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The loss is not a number any more.
    #[error("the loss is {loss} in epoch {epoch}, step {step}: try a lower learning rate")]
    Diverged {
        /// The epoch, from 1.
        epoch: usize,
        /// The step in the epoch, from 1.
        step: usize,
        /// The loss.
        loss: f64,
    },
    /// Some ranks have no more data, others have.
    #[error(
        "{out} of {ranks} ranks have no more data for step {step} of epoch {epoch}: give all ranks as many batches, or \
         choose to stop or to join with zeros"
    )]
    OutOfData {
        /// How many ranks have none.
        out: usize,
        /// Of how many.
        ranks: usize,
        /// The epoch, from 1.
        epoch: usize,
        /// The step in the epoch, from 1.
        step: usize,
    },
    /// Ranks built different models.
    #[error("the models are not the same: {message}")]
    ModelsDiffer {
        /// The lowest rank whose model differs from rank 0's.
        rank: Rank,
        /// The first difference.
        message: String,
    },
    /// Ranks hold different parameters; this must not happen.
    #[error(
        "the replicas are not the same: the parameters of ranks {ranks:?} differ from those of the others"
    )]
    ReplicasDiffer {
        /// Those that differ from most.
        ranks: Vec<Rank>,
    },
}

#[cfg(feature = "candle")]
impl From<candle_core::Error> for TrainError {
    fn from(error: candle_core::Error) -> Self {
        Self::Replica(error.into())
    }
}

impl From<StateError> for TrainError {
    fn from(error: StateError) -> Self {
        Self::OtherRun { checkpoint: "the checkpoint".to_owned(), why: error.to_string() }
    }
}

impl TrainError {
    /// Whether all ranks found the same at the same time, so that none waits for another.
    pub(super) fn is_common(&self) -> bool {
        matches!(self, Self::OutOfData { .. } | Self::Diverged { .. } | Self::ReplicasDiffer { .. })
    }

    /// Whether the cause is what the user asked for: nothing was begun, and the same call will fail again.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Setting(_) | Self::Data(_) | Self::Elsewhere { .. } | Self::OtherRun { .. } => true,
            Self::Checkpoint(error) => {
                !matches!(error, CheckpointError::Write { .. } | CheckpointError::Remove { .. })
            }
            #[cfg(feature = "candle")]
            Self::Model(_) => true,
            _ => false,
        }
    }
}
