//! Parts that `unisono-candle` uses, each for the reason that it states; not part of the stable API.

/// A GPU copies its batches in the last stage of the input pipeline.
pub use crate::ahead::Ahead;
/// A GPU takes the place of the host in a step, and fills buckets in the same order.
pub use crate::backend::{Backend, Run, State};
/// Settings are checked before a model is built: the order of additions that does not depend on the number of ranks, what a GPU does
/// not support, and the directories of a run.
pub use crate::buckets::IN_TREE;
pub use crate::buckets::{Ledger, Place};
/// Ranks compare and exchange what they found, so that an error of one is known to all.
pub use crate::compare::{broadcast, hash_with_buffers, lowest, parameters};
pub use crate::device::refusal;
/// The updates of a device reach the values of its replica.
pub use crate::gradients::Values;
/// The constants of a step of Adam, for its form on a GPU.
pub use crate::optimizer::adamw::Adam;
/// A saved model takes the averages of its parameters from the state of the optimizer.
pub use crate::optimizer::averaged::AVERAGE;
pub use crate::places::Places;
pub use crate::resume::moment_name;
/// Evaluations are over batches of the same samples, whoever makes them.
pub use crate::sampled::EVALUATION_BATCH;
