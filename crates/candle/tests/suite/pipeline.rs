//! Pipelines of stages compared with the same model on one rank.

pub(crate) mod builtin;
pub(crate) mod stages;
