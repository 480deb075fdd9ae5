//! Checkpoints: a run's parameters, its optimizer's state and where it was, kept so that a kill at any moment
//! or a full disk costs no more than the steps since the last one.
//!
//! A [`Store`] is a directory with a directory for each checkpoint, `step-0000001234`, that holds
//! `parameters.safetensors`, `optimizer.safetensors` and `state.json`. A checkpoint is written under another
//! name, and gets its own only when all of it is on the disk; older ones go only after that. What is read is
//! checked to the last byte.
//!
//! ```
//! use unisono_train::checkpoint::{Checkpoint, Store, Tensor, load_newest};
//!
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//! let weight = Tensor { name: "weight".into(), shape: vec![2, 1], values: vec![1.0, 2.0] };
//! let checkpoint = Checkpoint { step: 7, state: "epoch 3".to_string(), parameters: vec![weight], optimizer: vec![] };
//! let mut store = Store::open(directory, 2)?;
//! store.save_in_background(checkpoint.clone())?;
//! store.finish()?;
//!
//! let loaded = load_newest::<String>(directory)?.expect("there is one");
//! assert_eq!(loaded.checkpoint, checkpoint);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod files;
mod load;
mod store;

use std::collections::HashSet;
use std::time::Duration;

pub use error::{CheckpointError, PassedOver};
pub use load::{Loaded, load, load_newest};
pub(super) use load::{is_one, newest_state};
pub use store::Store;

/// An array with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// The name, of which there is but one in a list.
    pub name: String,
    /// How many elements it has along each dimension; none for a single number.
    pub shape: Vec<usize>,
    /// The elements, row-major.
    pub values: Vec<f32>,
}

/// All that a run needs to go on as if it had not been interrupted.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint<S> {
    /// How many steps were made.
    pub step: u64,
    /// What else the run has to know. It must read back from JSON as it was: no infinities and no NaN.
    pub state: S,
    /// The model's parameters.
    pub parameters: Vec<Tensor>,
    /// What the optimizer remembers.
    pub optimizer: Vec<Tensor>,
}

impl<S> Checkpoint<S> {
    /// Panics if a tensor is not what it says, or its name is one that a file can not hold.
    fn check(&self) {
        for tensors in [&self.parameters, &self.optimizer] {
            let mut names = HashSet::new();
            for Tensor { name, shape, values } in tensors {
                let count = shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size));
                assert!(
                    count == Some(values.len()),
                    "tensor `{name}` has {} values, but its shape is {shape:?}",
                    values.len()
                );
                assert!(names.insert(name), "two tensors have the name `{name}`");
                assert!(
                    name != "__metadata__",
                    "no tensor may be called `{name}`: the format has it for itself"
                );
            }
        }
    }
}

/// When a checkpoint is due: after so many steps or after so much time, whichever comes first; never, if neither
/// is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct When {
    /// At every step whose number is a multiple of this.
    pub every_steps: Option<u64>,
    /// When this much time has gone by since the last one.
    pub every: Option<Duration>,
}

impl When {
    /// Whether one is due now that `step` steps were made, and `since_last` after the last one (or, before the
    /// first one, after the beginning).
    ///
    /// Ranks that decide by time must not each decide for themselves: their clocks differ.
    pub fn due(&self, step: u64, since_last: Duration) -> bool {
        let by_steps = self.every_steps.is_some_and(|every| step > 0 && step.is_multiple_of(every));
        by_steps || self.every.is_some_and(|every| since_last >= every)
    }
}

#[cfg(test)]
mod tests;
