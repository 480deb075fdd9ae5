//! A whole run of a user's model in one call.

use candle_core::Result;
use unisono::Communicator;

use crate::network::{Loss, Network, Parameters};
use unisono_train::{Event, Loader, Resumed, RunSettings, Samples, Shares, Summary, TrainError, Trainer};

/// The most samples of a rank in a pass: a step of more has several.
const MICRO_BATCH: usize = 256;

/// Trains a model on all ranks: each takes its share of every global batch of `train`, and of the evaluations of `held_out` (perhaps
/// empty) at the end of every epoch. All ranks call it, with the same arguments. `loss` computes the loss of a batch, which is classes or
/// numbers, images or words, as `train` has them; `on_event` is told what happens.
///
/// It is [`Trainer`] with a [`Loader`] and a [`Network`], and gives what these do: buckets that overlap the backward pass, checkpoints,
/// early stopping. [`Resumed::find`] finds what a run resumes from.
///
/// # Errors
/// [`TrainError`] of the model, the samples, the settings, the collectives, or of a file.
pub fn fit<S: Samples>(
    comm: &mut Communicator,
    parameters: &Parameters,
    loss: impl Fn(&Vec<S::Sample>) -> Result<Loss>,
    (train, held_out): (S, S),
    settings: RunSettings,
    resumed: Option<Resumed>,
    on_event: impl FnMut(Event),
) -> std::result::Result<Summary, TrainError> {
    let (rank, ranks, global_batch) = (comm.rank(), comm.ranks(), settings.global_batch);
    let shares = Shares { rank, ranks, global_batch, micro_batch: MICRO_BATCH, fixed_passes: None };
    let feed = Loader::new(train, held_out, parameters.seed(), shares, settings.epochs);
    Trainer::new(comm, Network::new(parameters, loss), feed, settings, resumed)?.run(on_event)
}
