//! What can end a training run.

use std::fmt;
use std::path::PathBuf;

use unisono_collectives::Rank;

use crate::checkpoint::CheckpointError;
#[cfg(feature = "candle")]
use crate::model::ModelError;
use crate::optimizer::StateError;
use crate::replica::ReplicaError;
use unisono_data::DataError;

/// Why a training run could not begin, or ended before its time.
#[derive(thiserror::Error)]
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
    /// A checkpoint could not be read, or none can be kept in that place.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A run could not be saved, which ends it: what it made from then on would be lost. Said by the rank that saves.
    #[error("rank {rank} cannot save the run: {error}")]
    NotSaved {
        /// The rank that saves: 0.
        rank: Rank,
        /// What is wrong.
        error: CheckpointError,
    },
    /// A checkpoint is of another run.
    #[error("cannot go on from {checkpoint}: {why}")]
    OtherRun {
        /// The checkpoint.
        checkpoint: String,
        /// What does not fit.
        why: String,
    },
    /// A run that begins would mix its checkpoints with those of another run, and remove them.
    #[error(
        "`{}` holds the checkpoints of another run ({run}): go on from them with --resume, choose another directory, or \
         remove them with --overwrite",
        directory.display()
    )]
    Occupied {
        /// The directory.
        directory: PathBuf,
        /// What is known of that run.
        run: String,
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
    Collective(#[from] unisono::Error),
    /// What is logged could not be written.
    #[error("cannot write {what}: {error}")]
    Log {
        /// The file.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The loss is infinite or not a number any more. Nothing was updated in that step.
    #[error("the loss of {} is not finite ({loss}) in epoch {epoch}, step {step}: {}", whose(ranks, *of), advice(ranks, *of))]
    Diverged {
        /// The ranks whose own loss it was; none, if only the sum of all is too great.
        ranks: Vec<Rank>,
        /// Of how many.
        of: usize,
        /// The epoch, from 1.
        epoch: usize,
        /// The step in the epoch, from 1.
        step: usize,
        /// The mean loss of all ranks.
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
    #[error(
        "the models are not the same: {} from rank 0's; {message}",
        if let [rank] = ranks[..] { format!("rank {rank}'s differs") } else { format!("those of ranks {ranks:?} differ") }
    )]
    ModelsDiffer {
        /// All ranks whose model differs from rank 0's.
        ranks: Vec<Rank>,
        /// How that of the lowest of them differs, by the names of parameters.
        message: String,
    },
    /// Ranks hold different parameters; this must not happen.
    #[error(
        "the replicas are not the same after step {step}: the parameters of ranks {ranks:?} differ from those of the others{}",
        places(ranks, parameters)
    )]
    ReplicasDiffer {
        /// After how many steps it was seen.
        step: u64,
        /// Those that differ from most.
        ranks: Vec<Rank>,
        /// The first parameter of each of them that does.
        parameters: Vec<String>,
    },
}

/// As it reads: an error that `main` returns is printed by its `Debug`, and whoever wrote that `main` wants the sentence.
impl fmt::Debug for TrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whose loss it is.
fn whose(ranks: &[Rank], of: usize) -> String {
    match ranks {
        [] => "all ranks together".to_owned(),
        [rank] => format!("rank {rank} of {of}"),
        ranks if ranks.len() == of => format!("all {of} ranks"),
        ranks => format!("ranks {ranks:?} of {of}"),
    }
}

/// What to do about a loss that is not finite.
fn advice(ranks: &[Rank], of: usize) -> &'static str {
    match ranks.len() {
        found if 0 < found && found < of => "look at the samples there; or try a lower learning rate",
        _ => "try a lower learning rate",
    }
}

fn places(ranks: &[Rank], parameters: &[String]) -> String {
    let place = |(rank, parameter)| format!("; on rank {rank} from {parameter} on");
    ranks.iter().zip(parameters).map(place).collect()
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
            Self::Setting(_) | Self::Data(_) | Self::Elsewhere { .. } => true,
            Self::OtherRun { .. } | Self::Occupied { .. } => true,
            // Who else saves there may soon be gone: ranks of a run that was killed, say.
            Self::Checkpoint(CheckpointError::Busy { .. }) => false,
            Self::Checkpoint(error) => {
                !matches!(error, CheckpointError::Write { .. } | CheckpointError::Remove { .. })
            }
            #[cfg(feature = "candle")]
            Self::Model(_) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_reads_as_a_sentence() {
        let error = TrainError::Elsewhere { rank: 3 };
        assert_eq!(format!("{error:?}"), "something is wrong on rank 3");
    }
}
