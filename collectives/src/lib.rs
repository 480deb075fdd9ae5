//! All-reduce algorithms as values.
//!
//! **An algorithm is a pure function from (rank, world) to a schedule**: a list of steps, each with at most one send and at
//! most one receive, over a buffer that is split into chunks. That one value is *verified* ([`verify()`]: symbolically, all
//! ranks at once), *costed* ([`cost`] counts it, [`clock`] predicts its time on a machine described by [`model`]), *drawn*
//! ([`explain()`]), *simulated* ([`program::run`]), and, by the crate `unisono`, *run* over threads and MPI. So a ring is
//! written once, in ten lines ([`algorithm::ring`]).
//!
//! ```
//! use unisono_collectives::{Algorithm, Operation, Topology, cost, explain, verify};
//!
//! let world = Topology::single_node(4);
//! let plans = Algorithm::Ring.plans(Operation::AllReduce, &world).unwrap();
//!
//! assert!(verify(&plans, Operation::AllReduce).is_empty());
//! assert_eq!(cost::count(&plans).unwrap().sent_arrays(), 1.5);
//! print!("{}", explain("ring", Operation::AllReduce, &world, &plans));
//! ```
//!
//! which draws
//!
//! ```text
#![doc = include_str!("../tests/suite/golden/ring-4.txt")]
//! ```
//!
//! # Overview
//!
//! - A [`Plan`] is the part of one rank in one collective: phases, each a [`Group`] of ranks with a [`Schedule`].
//! - A [`Schedule`] is a list of [`Step`]s. It names chunks, not bytes; [`partition`] maps them to elements, so one schedule
//!   serves every size and every type.
//! - The outward half of an algorithm (an all-gather, a broadcast) is written by hand; the inward half is its time reversal
//!   ([`Schedule::reversed`]), and the all-reduce is both ([`Schedule::there_and_back`]).
//! - [`Algorithm`] lists the algorithms. The schedule fixes the order of additions, the same on all ranks, so all transports
//!   and all ranks get the same bits.
//! - A [`Machine`](model::Machine) describes the cost of messages within and between nodes; [`clock::predict`] predicts the
//!   time of an algorithm on it, for up to tens of thousands of ranks.
//!
//! This crate does no I/O, starts no threads, reads no real clock and no environment, has no `unsafe`, and needs
//! no system library.

#![forbid(unsafe_code)]

pub mod algorithm;
pub mod clock;
pub mod cost;
mod defect;
pub mod execution;
mod explain;
pub mod model;
pub mod names;
mod operation;
mod order;
pub mod partition;
mod plan;
pub mod program;
mod schedule;
mod verify;
mod world;

pub use algorithm::Algorithm;
pub use cost::Cost;
pub use defect::Defect;
pub use execution::Execution;
pub use explain::{explain, explain_programs, explain_svg};
pub use operation::Operation;
pub use plan::{Phase, Plan, VendorCall};
pub use program::Program;
pub use schedule::{Chunks, Combine, Receive, SENDS_AHEAD, Schedule, Send, Source, Step};
pub use verify::{verify, verify_programs};
pub use world::{Group, Rank, Topology};
