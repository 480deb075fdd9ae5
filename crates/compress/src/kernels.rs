//! Loops over elements that encode and decode; public for benchmarks.

pub mod low_rank;
pub mod quantized;
pub mod sparse;
