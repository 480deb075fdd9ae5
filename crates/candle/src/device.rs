//! The device of a model: the CPU or, with the feature `cuda`, this rank's GPU.
//!
//! On a GPU, gradients and parameters stay there. Values pass through the host when they are broadcast, compared, saved or
//! read, which is rare; so files and hashes are the same as on the CPU.

#[cfg(feature = "cuda")]
mod ahead;
mod choice;
#[cfg(any(test, feature = "cuda"))]
mod near;

#[cfg(feature = "cuda")]
pub(super) use ahead::ahead;
pub use choice::DeviceKind;

#[cfg(not(feature = "cuda"))]
use unisono_train::{TrainError, internals::PassOn};

#[cfg(not(feature = "cuda"))]
use super::model::Placed;

/// Returns the copier of batches to the device of the model: none, since without the feature `cuda` that is the CPU.
#[cfg(not(feature = "cuda"))]
pub(super) fn ahead(
    _: &mut unisono::Communicator,
    _: &candle_core::Device,
) -> Result<Option<PassOn<Placed>>, TrainError> {
    Ok(None)
}
