//! Strategies of training: how the ranks of a world share the work. The mirrored one is `unisono-train` alone.
//!
//! - [`Strategy`]: every strategy by its name, and the worlds that it fits.
//! - [`ParameterServer`]: some ranks hold the parameters, the others compute gradients.
//! - [`pipeline`]: models cut into stages, each a replica for a [`Mirror`](unisono_train::Mirror).

#![forbid(unsafe_code)]

pub mod pipeline;
mod server;
mod strategy;

pub use server::{ParameterServer, ServerSettings, Staleness, UnknownStaleness};
pub use strategy::{PipelineSettings, Strategy, StrategyKind};
