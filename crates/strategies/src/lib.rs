//! Strategies of training: the division of work among the ranks of a world. For the mirrored strategy, `unisono-train` suffices.
//!
//! - [`Strategy`]: every strategy by its name, and the worlds that it supports.
//! - [`ParameterServer`]: some ranks hold the parameters, and the others compute gradients.
//! - [`pipeline`]: models cut into stages, each a replica for a [`Mirror`](unisono_train::Mirror).
//! - [`central_storage`]: one copy of parameters, gradients and optimizer state per node, in place of a mirror's buckets.

#![deny(unsafe_code)]

mod central;
pub mod pipeline;
mod server;
mod strategy;

pub use central::central_storage;
pub use server::{Ended, ParameterServer, ServerSettings, Staleness};
pub use strategy::Strategy;
