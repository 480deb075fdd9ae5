//! Data-parallel training of [candle](candle_core) models: the framework under [`unisono_train`].
//!
//! - [`DataParallel`] averages gradients in a training loop of your own.
//! - [`fit`] is a whole run of your [`Model`] in one call.
//! - [`Network`] and [`StageNetwork`] are a model, and a stage of one, for the parts of [`unisono_train`].
//! - [`Config`] describes a run, of your model or of one of the [models](model) that `unisono train` trains.
//! - [`Saved`] reads a model from a checkpoint, and [`Predictor`] computes with it.
//!
//! Tensor operations use `RAYON_NUM_THREADS` threads, or all cores if it is not set. Ranks on the same node must
//! share its cores: see `config::share_cores`.
//!
//! A program that trains candle models should choose an allocator that keeps large blocks: with the system's, page faults take up to a
//! third of a step. Add `mimalloc = { version = "0.1", default-features = false }` to its dependencies, and to its `main.rs`
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
pub use saved::{Description, Guess, Part, Predictor, Sampling, Saved};
pub use tensors::{TensorForm, TensorRule};
