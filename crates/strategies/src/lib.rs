//! Strategies of training: how the ranks of a world share the work. The mirrored one is `unisono-train` alone.
//!
//! - [`Strategy`]: every strategy by its name, and the worlds that it fits.
//! - [`ParameterServer`]: some ranks hold the parameters, the others compute gradients.
//! - [`pipeline`]: models cut into stages, each a replica for a [`Mirror`](unisono_train::Mirror).
//! - [`central_storage`]: parameters, gradients and optimizer state once on a node, in the place of a mirror's buckets.

#![deny(unsafe_code)]

mod central;
pub mod pipeline;
mod server;
mod strategy;

pub use central::central_storage;
pub use server::{ParameterServer, ServerSettings, Staleness};
pub use strategy::{PipelineSettings, Strategy, StrategyKind};
