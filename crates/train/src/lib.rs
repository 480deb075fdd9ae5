//! The data-parallel trainer. Every rank holds the same model, processes its share of every batch, and averages gradients with the other ranks. It
//! uses no transport directly, only a [`Communicator`](unisono::Communicator).
//!
//! From the innermost type to the outermost:
//! - [`Replica`]: a model on one rank, in any framework; `unisono-candle` provides one.
//! - [`Buckets`]: gradients, all-reduced in buckets during the backward pass.
//! - [`Mirror`]: the data-parallel step.
//! - [`Trainer`]: the loop over steps and epochs, with a [`Feed`], checkpoints and logs.
//!
//! `unisono-strategies` divides the work in other ways: parameter servers, pipelines, central storage. `unisono-candle` trains candle models with all
//! of them. Its `fit` makes a whole run in one call.

#![forbid(unsafe_code)]

// A step: gradients, averaged in buckets, update a model.
mod backend;
mod buckets;
mod gradients;
mod local;
mod means;
pub mod optimizer;
pub mod rate;
mod replica;
mod step;

// The loop over steps and epochs: settings, checks, checkpoints and resuming.
mod arrays;
pub mod checkpoint;
mod compare;
mod damage;
mod error;
mod places;
mod resume;
mod run;
mod state;
mod trainer;

// The feed of the loop: prefetched shares of batches.
mod epochs;
mod feed;
mod sampled;
mod samples;
mod stream;

// The reports of a run.
mod log;
pub mod metrics;
mod report;
mod resident;
mod starvation;
mod straggler;
pub mod tensorboard;

#[doc(hidden)]
pub mod internals;

pub use backend::Times;
pub use buckets::{
    BucketBytes, BucketSettings, BucketSize, Buckets, Filling, Order, Overlap, Pass, Sums, UnknownWire, Wire,
    Wires,
};
pub use compare::agree;
pub use error::TrainError;
pub use feed::{Batches, Feed, OutOfData, RandomAccessFeed, Share, Shares, Steps};
pub use gradients::{Fill, Gradients, LossSums, Parameter, ReplicaError};
pub use local::{LocalSteps, Outer};
pub use means::Means;
pub use metrics::Test;
pub use optimizer::{AdamW, Lamb, Lion, NamedRule, OptimizerSettings, Sgd};
pub use replica::{Parts, Replica};
pub use report::{
    Best, EndedEarly, EpochReport, Evaluation, Event, StepEvent, Stopped, Summary, WorkerReport,
    WorkersReport,
};
pub use resume::{Progress, Resumed, load};
pub use run::{Checkpoints, EarlyStopping, RunSettings};
pub use sampled::Sampled;
pub use samples::{BatchSource, Samples};
pub use starvation::explain_bottleneck;
pub use step::{Mirror, StepReport};
pub use straggler::{RankTimes, Straggler, StragglerReport};
pub use stream::Stream;
pub use trainer::{Callback, Flow, Trainer, evaluate};
pub use unisono_data::Stop;
