//! Items that `unisono-strategies`, `unisono-candle` and `unisono-burn` use, each with its reason. Not part of the stable API.

/// On a GPU, the last stage of the input pipeline copies batches there.
pub use crate::sampled::PassOn;

/// A GPU replaces the host in a step: it fills buckets in the same order, and updates the values of its replica.
pub use crate::backend::{Backend, Run, Update};
/// Central storage replaces the host too, and refuses the same optimizers as sharding does.
pub use crate::backend::{keeps_average, needs_whole, optimizer_of};
pub use crate::buckets::{Ledger, Place, end_pass};
pub use crate::gradients::Values;
/// The constants of a step of Adam, for its tensor form.
pub use crate::optimizer::adamw::Adam;

/// Settings are checked before a model is built: the world-invariant order of additions, the features that a GPU does not support, the directories
/// of the run, and the settings that no strategy supports.
pub use crate::backend::refusal;
pub use crate::buckets::IN_TREE;
pub use crate::places::{check_outputs, check_run};

/// Ranks exchange their results, so that every rank receives the error of any other.
pub use crate::compare::{broadcast, hash_with_buffers, lowest, model};

/// Parameter servers send the buckets of a mirrored step in its arrays, as a GPU its sums, and keep the state of a run as a trainer does.
pub use crate::buckets::{CommBuffer, HalfBytes, Plan, WithoutGradient};
pub use crate::state::{RunState, not_saved};

/// Rank 0 reads a saved model for all ranks.
pub use crate::arrays::scatter;
pub use crate::checkpoint::{moment_name, saved_moment};
/// The averages of a saved model's parameters are entries of the optimizer's state.
pub use crate::optimizer::averaged::AVERAGE;

/// An evaluation of a saved model reports damaged samples as a run does.
pub use crate::damage::Damage;

/// Predictions and memory estimates use the batch size of evaluations.
pub use crate::sampled::EVALUATION_BATCH;
