//! Data-parallel training of [candle](candle_core) models: the candle integration of [`unisono_train`].
//!
//! - [`DataParallel`] averages gradients in a custom training loop.
//! - [`fit`] trains your [`Model`] in one call.
//! - [`Network`] and [`StageNetwork`] adapt a model, or a stage of one, to the components of [`unisono_train`].
//! - [`Config`] configures a run of your model, or of one of the [models](model) that `unisono train` trains.
//! - [`Saved`] reads a model from a checkpoint, and [`Predictor`] makes predictions with it.
//!
//! Tensor operations use `RAYON_NUM_THREADS` threads, or all cores if it is not set. Ranks on the same node must divide its cores among them: see
//! [`unisono::config::share_cores`].
//!
//! A program that trains candle models should use an allocator that keeps large blocks: with the system's allocator, page faults take up to a third
//! of a step. Add `mimalloc = { version = "0.1", default-features = false }` to its dependencies, and to its `main.rs`
//! ```ignore (the crate does not choose an allocator for its users)
//! #[global_allocator]
//! static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
//! ```

#![deny(unsafe_code)]

mod config;
mod data_parallel;
mod device;
mod error;
mod fit;
#[cfg(feature = "cuda")]
mod gpu;
pub mod model;
mod network;
mod saved;
mod tensors;
mod values;

pub use config::{Augment, Config, ImageSize, MemoryEstimate, Origin, Size};
pub use data_parallel::DataParallel;
pub use device::DeviceKind;
pub use fit::{Model, fit, fit_with};
pub use network::{
    Cut, Dropout, Function, Linear, Loss, Network, Parameters, StageNetwork, SyncBatchNorm, apply,
    cross_entropy,
};
pub use saved::{Description, Evaluated, Guess, Part, Predictor, Sampling, Saved};
pub use tensors::{TensorForm, TensorRule};
