//! What ranks know of each other beside their messages: who failed, who has left, what each does and did last.

#![allow(dead_code, reason = "read by what watches")]

#[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "threads need less of it"))]
pub(crate) mod lookout;
mod record;
mod ring;
mod roll;
#[allow(unsafe_code, reason = "memory is shared with other processes")]
mod sheet;

pub(crate) use record::Seconds;
pub use record::{Doing, Record, Stage, State};
pub(crate) use roll::Roll;

pub(crate) fn dump(_roll: &Roll, _position: usize, _why: &str) {}
