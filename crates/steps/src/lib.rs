//! Training steps as values: the actions of ranks in a step, and their times on a machine described by [`unisono_collectives::model`].
//!
//! - [`Plan`] and [`Step`]: buckets of gradients, and the times of their all-reduces, which overlap a backward pass.
//! - [`pipeline`]: schedules of forward and backward passes over stages of a model, verified, timed and drawn.
//! - [`Served`]: workers that pull parameters from servers and push gradients.
//!
//! Like `unisono-collectives`, this crate does no I/O, starts no threads, and reads no real clock and no environment.

#![forbid(unsafe_code)]

mod buckets;
pub mod pipeline;
mod plan;
mod served;

pub use buckets::{
    Bucket, Overlap, Step, USUAL_BUCKET_BYTES, USUAL_FIRST_BUCKET_BYTES, bucket_bytes, launch_order,
};
pub use plan::{Place, Plan};
pub use served::Served;
