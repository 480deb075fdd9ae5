//! What can end a training run.

use unisono_collectives::Rank;

use super::model::ModelError;
use crate::data::DataError;

/// Why a training run could not begin, or ended before its time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A setting makes no sense, by itself or for this data.
    #[error("{0}")]
    Setting(String),
    /// The data could not be loaded.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model could not be built.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Something is wrong on another rank, which says what.
    #[error("rank {rank} could not begin")]
    Elsewhere {
        /// The lowest rank where something is wrong.
        rank: Rank,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The ranks could not work together.
    #[error(transparent)]
    Collective(#[from] crate::Error),
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
    /// Ranks ended with different parameters; this must not happen.
    #[error("the replicas are not the same: the parameters of rank {rank} have the hash {hash:016x}")]
    ReplicasDiffer {
        /// This rank.
        rank: Rank,
        /// The hash of its parameters.
        hash: u64,
    },
}

impl TrainError {
    /// Whether the cause is what the user asked for: nothing was begun, and the same call will fail again.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::Setting(_) | Self::Data(_) | Self::Model(_) | Self::Elsewhere { .. })
    }
}
