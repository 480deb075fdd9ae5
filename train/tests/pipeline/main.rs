//! Pipelines of stages against the same model on one rank.

mod builtin;
mod stages;
