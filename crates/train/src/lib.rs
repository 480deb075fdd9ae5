//! The data-parallel trainer: every rank holds the same model, takes its share of every batch, and averages
//! gradients with the other ranks. It uses no transport directly, only a [`Communicator`](unisono::Communicator).
//!
//! From the inside out:
//! - [`Replica`]: a model on one rank, in any framework; the feature `candle` provides one.
//! - [`Buckets`]: gradients, all-reduced in buckets during the backward pass.
//! - [`Mirror`]: the data-parallel step. It reads from top to bottom.
//! - [`ParameterServer`]: the same run with servers and workers instead of equals.
//! - [`pipeline`]: models cut into stages, each a replica for a mirror.
//! - [`Trainer`]: the loop over steps and epochs, fed by a [`Feed`], with checkpoints and logs.
//!
//! With the feature `candle`, `fit` is a whole run in one call, and `DataParallel` averages gradients in a training loop of your own.
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

mod ahead;
mod backend;
mod buckets;
#[cfg(feature = "candle")]
pub mod candle;
#[allow(unsafe_code, reason = "ranks add gradients where all see them")]
mod central;
pub mod checkpoint;
mod compare;
mod damage;
#[cfg(feature = "candle")]
mod data_parallel;
mod device;
mod epochs;
mod error;
mod feed;
#[cfg(feature = "candle")]
mod fit;
mod local;
mod log;
pub mod metrics;
#[cfg(feature = "candle")]
pub mod model;
#[cfg(feature = "candle")]
mod needs;
pub mod optimizer;
mod parts;
pub mod pipeline;
mod places;
pub mod rate;
mod replica;
mod report;
mod resident;
mod resume;
mod run;
mod sampled;
mod samples;
#[cfg(feature = "candle")]
mod saved;
mod server;
#[cfg(feature = "candle")]
mod settings;
mod share;
mod stage;
mod starvation;
mod step;
mod straggler;
mod strategy;
mod streamed;
pub mod tensorboard;
pub mod trace;
mod trainer;

pub use buckets::{
    BucketBytes, BucketSettings, BucketSize, Buckets, Filling, Flight, Order, Overlap, Pass, Sums,
    UnknownWire, UnknownWires, Wire, WireChoice, Wires,
};
pub use compare::agree;
#[cfg(feature = "candle")]
pub use data_parallel::DataParallel;
#[cfg(feature = "candle")]
pub use device::DeviceKind;
pub use error::TrainError;
pub use feed::{AnyShare, Batches, Feed, OutOfData, Shares, Steps, Stream};
#[cfg(feature = "candle")]
pub use fit::fit;
pub use local::{LocalSteps, Outer, UnknownOuter};
#[cfg(feature = "candle")]
pub use needs::Needs;
pub use optimizer::{AdamW, Lamb, Lion, NamedRule, OptimizerSettings, Sgd};
pub use replica::{Fill, Gradients, Parameter, Parts, Replica, ReplicaError, Tally};
pub use report::{
    Best, EndedEarly, EpochReport, Evaluation, Event, StepEvent, Stopped, Summary, WorkerReport,
    WorkersReport,
};
pub use resume::{Progress, Resumed, load};
pub use run::{Checkpoints, EarlyStopping, RunSettings};
pub use sampled::Sampled;
pub use samples::{Loader, Samples};
#[cfg(feature = "candle")]
pub use saved::{Guess, Part, Predictor, Sampling, Saved};
pub use server::{ParameterServer, ServerSettings, Staleness, UnknownStaleness};
#[cfg(feature = "candle")]
pub use settings::{Augment, ImageSize, Origin, Settings, Size};
pub use share::{Share, StepReport, Times};
pub use starvation::explain_bottleneck;
pub use step::Mirror;
pub use straggler::{RankTimes, Straggler, StragglerReport};
pub use strategy::{PipelineSettings, Strategy, StrategyKind};
pub use streamed::Streamed;
pub use trainer::{Test, Trainer, evaluate, measure};
pub use unisono_data::Stop;
