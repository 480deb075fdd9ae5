//! Errors that end a training run.

use std::fmt;
use std::path::PathBuf;

use unisono_collectives::Rank;

use crate::ReplicaError;
use crate::checkpoint::{self, CheckpointError};
use unisono_data::DataError;

/// The largest permitted magnitude of a parameter. Training that exceeds it has diverged, because the square of such a value exceeds the range of
/// `f32`.
pub const LARGEST_VALUE: f32 = 18_446_744_073_709_551_616.0;

/// The reason why a training run could not start, or ended early.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each error's sentence names its fields")]
pub enum TrainError {
    /// A setting is invalid, by itself or for this data.
    #[error("{0}")]
    Setting(String),
    /// The data could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A rank's data could not be read during a run.
    #[error("rank {rank} failed in epoch {epoch}, step {step}: {error}")]
    Feed { rank: Rank, epoch: usize, step: usize, error: DataError },
    /// A checkpoint could not be read, or the directory cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A run could not be saved. This ends the run, because all later work would be lost. Reported by the rank that saves.
    #[error("rank {rank} cannot save the run: {error}")]
    NotSaved { rank: Rank, error: CheckpointError },
    /// A checkpoint belongs to another run.
    #[error("cannot resume from {checkpoint}: {why}")]
    OtherRun { checkpoint: String, why: String },
    /// A new run would mix its checkpoints with the checkpoints of another run, and delete those.
    #[error(
        "`{}` holds the checkpoints of another run ({run}): go on from them with --resume, choose another directory, or \
         remove them with --overwrite",
        directory.display()
    )]
    Occupied { directory: PathBuf, run: String },
    /// Another rank has an error, and reports it.
    #[error("rank {rank} reports an error")]
    Elsewhere { rank: Rank },
    /// The framework returned an error.
    #[error("{0}")]
    Replica(#[from] ReplicaError),
    /// The communicator returned an error.
    #[error(transparent)]
    Collective(#[from] unisono::Error),
    /// A log file, which the error names, could not be written.
    #[error("{error}; {}", checkpoint::advice(error))]
    Log { error: std::io::Error },
    /// The loss is infinite or NaN on these ranks. The list is empty if only the sum over all ranks overflows. The step updated nothing.
    #[error("the loss of {} is not finite ({loss}) in epoch {epoch}, step {step}: {}", whose(ranks, *of), advice(ranks, *of))]
    Diverged { ranks: Vec<Rank>, of: usize, epoch: usize, step: usize, loss: f64 },
    /// A gradient is infinite or NaN, or has made its parameter infinite, NaN or [larger](LARGEST_VALUE) than training can use.
    /// Nothing of that step is saved. `of` is "gradient", or "largest value" if the parameter or its optimizer state is affected.
    #[error(
        "the {of} of {parameter} is {found:e} on rank {rank} in step {step}: expected at most {LARGEST_VALUE:e}; a lower learning \
         rate, more --warm-up or --clip-norm may help; resume from a checkpoint before"
    )]
    NotFinite { of: &'static str, parameter: String, found: f32, rank: Rank, step: u64 },
    /// Some ranks have no more data, and others have.
    #[error(
        "{out} of {ranks} ranks have no more data for step {step} of epoch {epoch}: give all ranks as many batches, or \
         choose to stop or to join with zeros"
    )]
    OutOfData { out: usize, ranks: usize, epoch: usize, step: usize },
    /// Ranks built models that differ from rank 0's model. The message describes the lowest of these ranks.
    #[error(
        "the models are not the same: {} from rank 0's; {message}",
        if let [rank] = ranks[..] { format!("rank {rank}'s differs") } else { format!("those of ranks {ranks:?} differ") }
    )]
    ModelsDiffer { ranks: Vec<Rank>, message: String },
    /// A parameter server is lost, which ends the run.
    #[error("the parameter server on rank {server} is lost: {error}")]
    ServerLost { server: Rank, error: unisono::Error },
    /// A worker of parameter servers is lost, in a run that is not elastic.
    #[error(
        "the worker on rank {rank} is lost: {why}; start the run again with --resume, or use --elastic, which tolerates it"
    )]
    WorkerLost { rank: Rank, why: String },
    /// All workers of parameter servers are lost, in an elastic run.
    #[error("all {of} workers are lost, the last one on rank {rank}: {why}")]
    WorkersLost { of: usize, rank: Rank, why: String },
    /// Ranks in the minority hold different parameters, each from the given parameter on. This indicates a bug or faulty memory.
    #[error(
        "the replicas are not the same after step {step}: the parameters of ranks {ranks:?} differ from those of the others{}",
        places(ranks, parameters)
    )]
    ReplicasDiffer { step: u64, ranks: Vec<Rank>, parameters: Vec<String> },
    /// [Callbacks](crate::Callback) of different ranks made different decisions about the run.
    #[error(
        "the callbacks of ranks {ranks:?} decided otherwise than rank 0's after epoch {epoch}: expected the same on all ranks; decide by \
         losses and accuracies, which are the same, and not by times"
    )]
    CallbacksDiffer { ranks: Vec<Rank>, epoch: usize },
}

/// Prints the text of `Display`. Rust prints an error that `main` returns by its `Debug`, and the user should see the sentence.
impl fmt::Debug for TrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the subject of a message about these ranks.
fn whose(ranks: &[Rank], of: usize) -> String {
    match ranks {
        [] => "all ranks together".to_owned(),
        [rank] => format!("rank {rank} of {of}"),
        ranks if ranks.len() == of => format!("all {of} ranks"),
        ranks => format!("ranks {ranks:?} of {of}"),
    }
}

/// Advice for a loss that is not finite.
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

impl TrainError {
    pub(super) fn in_step(mut self, in_step: u64) -> Self {
        if let Self::NotFinite { step, .. } = &mut self {
            *step = in_step;
        }
        self
    }

    /// Returns whether all ranks detected the same error at the same time, so that none waits for another.
    pub(super) fn is_common(&self) -> bool {
        matches!(
            self,
            Self::OutOfData { .. }
                | Self::Diverged { .. }
                | Self::NotFinite { .. }
                | Self::ReplicasDiffer { .. }
                | Self::CallbacksDiffer { .. }
        )
    }

    /// Returns whether the request was invalid. Nothing was started, and the same call will fail again.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Data(DataError::Stopped) => false,
            Self::Setting(_) | Self::Data(_) | Self::Elsewhere { .. } => true,
            Self::OtherRun { .. } | Self::Occupied { .. } => true,
            // The other process may soon be gone, for example a rank of a killed run.
            Self::Checkpoint(CheckpointError::Busy { .. }) => false,
            Self::Checkpoint(error) => {
                !matches!(error, CheckpointError::Write { .. } | CheckpointError::Remove { .. })
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_that_main_returns_prints_its_message() {
        let error = TrainError::Elsewhere { rank: 3 };
        assert_eq!(format!("{error:?}"), "rank 3 reports an error");
    }
}
