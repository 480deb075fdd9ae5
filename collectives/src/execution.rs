//! How a plan is carried out: a value too, made from the plan, its size, and what links and memory allow.
//!
//! A plan says who sends what to whom and in which order it is added. An [`Execution`] says the rest: whether short messages go as early as
//! what they read is there, in how many blocks steps are taken one after the other, whether ranks that reach each other's memory need
//! no messages at all, and what is on the wire while something else is reduced. All that decides it is in one function,
//! [`CompiledPlan::execution`]; the executor only interprets what comes out, and [`verify_executions`] plays it.
//!
//! ```
//! use unisono_collectives::execution::{Capabilities, CompiledPlan, Execution};
//! use unisono_collectives::{Algorithm, Operation, Topology};
//!
//! let compiled =
//!     CompiledPlan::new(Algorithm::RoundRobin, Operation::AllReduce, &Topology::single_node(4), 0).unwrap();
//! let shared = Capabilities { is_shared: true, ..Capabilities::default() };
//! assert!(matches!(compiled.execution(1 << 20, 4, &shared), Execution::SinglePass { blocks: 2, .. }));
//! // Without memory in common there are messages.
//! let execution = compiled.execution(1 << 20, 4, &Capabilities::default());
//! assert_eq!(execution, Execution::Messages { blocks: 1, by_vendor: false });
//! ```

use std::sync::Arc;

use crate::direct::Direct;
use crate::model::Machine;
use crate::world::Topology;

mod acts;
mod compiled;
mod eager;
mod lanes;
mod moves;
mod play;
mod traits;
mod verify;

pub use compiled::CompiledPlan;
pub use eager::{EagerStep, Half, Place};
pub(crate) use lanes::DEPTH as LANES_DEPTH;
pub use lanes::{LaneAct, Timetable};
pub use moves::{Move, Moves};
pub use traits::Traits;
pub use verify::verify_executions;

/// How much of a chunk is worked on at a time where ranks share memory: a few of it fit a core's cache.
pub const BLOCK_BYTES: usize = 512 << 10;

/// How a rank carries out its plan. All ranks of a call make theirs from the same, and come to the same kind and number of blocks.
///
/// A *block* is a part of each chunk. So an element stays in its chunk, and the bits do not depend on how many there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Execution {
    /// Every message is eager: halves of steps, each send as early as what it reads is there.
    Eager(Vec<EagerStep>),
    /// The plan's steps by messages, all of one block after all of the one before.
    Messages {
        /// How many blocks.
        blocks: usize,
        /// Whether phases that name what a vendor may do are left to MPI's own collectives.
        by_vendor: bool,
    },
    /// A direct all-reduce in a single pass over memory that all ranks reach, without messages: each reduces its own chunks of all
    /// buffers, and gives all the result.
    SinglePass {
        /// Who reduces what, and in which order.
        direct: Arc<Direct>,
        /// How many passes, one for each block.
        blocks: usize,
    },
    /// What only moves elements, in a single pass over memory that all ranks reach.
    Moves(Moves),
    /// Levels in lanes: while one block is between nodes, others are reduced and spread inside of them.
    Lanes(Timetable),
}

impl Execution {
    /// In how many blocks the array is worked on.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Eager(_) => 1,
            Self::Messages { blocks, .. } | Self::SinglePass { blocks, .. } => *blocks,
            Self::Moves(moves) => moves.blocks,
            Self::Lanes(timetable) => timetable.blocks,
        }
    }
}

/// What links, memory and the type of the elements allow. What all ranks must decide alike follows from it, so all have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether all ranks reach each other's memory.
    pub is_shared: bool,
    /// Whether messages between nodes go on while a rank does something else.
    pub has_lanes: bool,
    /// Up to this size a message between ranks that share memory is copied to where its receiver finds it, and its sender goes on.
    pub eager_bytes: usize,
    /// What the links between nodes send at a time.
    pub segment_bytes: usize,
    /// Whether elements are held in a wider format than they travel in.
    pub accumulates: bool,
    /// Whether MPI's own collectives are to carry out what they may.
    pub by_vendor: bool,
}

impl Capabilities {
    /// What a machine allows ranks on these nodes: in one node they share memory if it has a [single pass](Machine::one_pass), and
    /// between nodes there are lanes if something [goes on there](Machine::segment_bytes).
    pub fn of(machine: &Machine, topology: &Topology) -> Self {
        let nodes = topology.nodes();
        Self {
            is_shared: machine.one_pass.is_some() && nodes == 1,
            has_lanes: machine.segment_bytes.is_some() && nodes > 1,
            eager_bytes: machine.eager_bytes,
            segment_bytes: machine.segment_bytes.unwrap_or(1),
            accumulates: false,
            by_vendor: false,
        }
    }
}

/// Ranks that share nothing and have nothing but messages.
impl Default for Capabilities {
    fn default() -> Self {
        Self {
            is_shared: false,
            has_lanes: false,
            eager_bytes: 0,
            segment_bytes: 1,
            accumulates: false,
            by_vendor: false,
        }
    }
}
