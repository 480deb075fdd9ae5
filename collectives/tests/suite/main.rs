//! The integration tests of the pure crate.

mod drawings;
mod every_small_world;
mod executions;
mod mutants;
mod programs;
