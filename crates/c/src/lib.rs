//! Unisono for C, C++ and Fortran. cbindgen generates `include/unisono.h` from this crate.
//!
//! The library is not linked with MPI. A world starts with a callback that gathers a few bytes from its ranks, with a key-value
//! store, with the environment that a launcher sets, or with threads. So one library serves programs over any MPI or none.
//!
//! No function panics across the interface, installs a handler, or ends the process, unless [`options::Settings::end_job`] is set.

/// The header that declares these functions.
pub const HEADER: &str = include_str!("../include/unisono.h");

pub mod all_to_all_v;
pub mod collectives;
pub mod comm;
pub mod compressor;
pub mod errors;
mod exported;
pub mod gpu;
pub mod groups;
pub mod memory;
pub mod messages;
pub mod options;
pub mod plans;
pub mod reductions;
pub mod requests;
pub mod shrink;
pub mod values;
pub mod waits;
pub mod world;
