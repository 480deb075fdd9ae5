//! Several pipelines in parallel.

use unisono::Communicator;

use unisono_train::TrainError;

/// The position of a rank in a grid of stages and replicas of pipelines.
#[derive(Debug)]
pub struct Grid {
    /// The ranks of this rank's pipeline, in the order of the stages.
    pub pipeline: Communicator,
    /// The ranks that hold the same stages in other pipelines, over which a [`Mirror`](unisono_train::Mirror) synchronises.
    pub replicas: Communicator,
}

impl Grid {
    /// Cuts a world into pipelines of this many ranks. Ranks that hold the same stages have consecutive numbers, so that they share a node if
    /// possible, because gradients are usually larger than activations. Called by all ranks with the same number.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the number of ranks is not a multiple of `ranks_per_pipeline`. Errors of the collectives.
    pub fn of(comm: &mut Communicator, ranks_per_pipeline: usize) -> Result<Self, TrainError> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        if ranks_per_pipeline == 0 || !ranks.is_multiple_of(ranks_per_pipeline) {
            return Err(TrainError::Setting(format!(
                "{ranks} ranks cannot be cut into pipelines of {ranks_per_pipeline}: the ranks must be a multiple"
            )));
        }
        let pipelines = ranks / ranks_per_pipeline;
        let mut of_color = |color| comm.split(Some(color), 0).map(|group| group.expect("it has a color"));
        Ok(Self { pipeline: of_color(rank % pipelines)?, replicas: of_color(rank / pipelines)? })
    }
}
