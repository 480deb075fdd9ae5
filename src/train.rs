//! The mirrored trainer: every rank holds the same model, takes its share of every batch, and averages
//! gradients with the others.

#[cfg(feature = "candle")]
mod error;
#[cfg(feature = "candle")]
pub mod model;
#[cfg(feature = "candle")]
mod optimizer;
#[cfg(feature = "candle")]
mod rate;
#[cfg(feature = "candle")]
mod replica;
#[cfg(feature = "candle")]
mod settings;
#[cfg(feature = "candle")]
mod trainer;

#[cfg(feature = "candle")]
pub use error::TrainError;
#[cfg(feature = "candle")]
pub use optimizer::OptimizerKind;
#[cfg(feature = "candle")]
pub use settings::Settings;
#[cfg(feature = "candle")]
pub use trainer::{EpochReport, Event, Summary, Trainer};
