//! Executions: the ways to carry out a plan, given its size and the capabilities of links and memory.
//!
//! A plan defines which rank sends which data to which rank, and the order of additions. An [`Execution`] defines the rest: whether short
//! messages are eager, the number of blocks that are processed in sequence, whether ranks need no messages because they access each other's
//! memory, and the work that overlaps with transfers between nodes. [`CompiledPlan::execution`] decides it, and [`CompiledPlan::program`]
//! translates the plan accordingly to a [program](crate::program), which is verified, drawn and run. An array in GPU memory has a
//! [`StagedPlan`]: segments that pass through pinned memory, each reduced by a separate program.
//!
//! ```
//! use unisono_collectives::execution::{Capabilities, CompiledPlan, Execution};
//! use unisono_collectives::{Algorithm, Operation, Topology};
//!
//! let compiled =
//!     CompiledPlan::new(Algorithm::RoundRobin, Operation::AllReduce, &Topology::single_node(4), 0).unwrap();
//! let shared = Capabilities { is_shared: true, ..Capabilities::default() };
//! assert_eq!(compiled.execution(1 << 20, 4, &shared), Execution::SinglePass { blocks: 2 });
//! // Without common memory there are messages.
//! let execution = compiled.execution(1 << 20, 4, &Capabilities::default());
//! assert_eq!(execution, Execution::Messages { blocks: 1 });
//! ```

use crate::model::Machine;
use crate::world::Topology;

mod compiled;
mod flow;
mod staged;

pub use compiled::CompiledPlan;
pub(crate) use compiled::PIPELINE_DEPTH;
pub use staged::{StagedAct, StagedPlan, acts as staged_acts};

/// The size of the part of a chunk that is processed at a time where ranks share memory. A few of them fit a core's cache.
pub const BLOCK_BYTES: usize = 512 << 10;

/// The ways in which a rank carries out its plan. All ranks of a call derive it from the same inputs, and get
/// the same result.
///
/// A *block* is a part of each chunk: an element stays in its chunk, and results do not depend on the number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// Every message is eager, with each send as early as its data allows.
    Eager,
    /// The plan's steps by messages, one block after the other.
    Messages {
        /// The number of blocks.
        blocks: usize,
    },
    /// The plan's steps by messages, and MPI's own collectives in place of the phases that name one.
    ByVendor,
    /// A direct all-reduce in passes over memory that all ranks access, without messages: each rank reduces its own
    /// chunks of all buffers, and writes the result to all. (Hashmi, Chakraborty, Bayatpour, Subramoni and Panda, "Designing
    /// efficient shared address space reduction collectives for multi-/many-cores", IPDPS 2018.)
    SinglePass {
        /// The number of passes, one for each block.
        blocks: usize,
    },
    /// An operation that only moves elements, in passes over memory that all ranks access.
    Moves {
        /// The number of passes, one for each block.
        blocks: usize,
    },
    /// Multi-level plans, pipelined over blocks: while one block is between nodes, others are reduced and distributed
    /// inside them. (Luo et al., "HAN: a hierarchical autotuned collective communication framework", IEEE CLUSTER 2020.)
    Pipelined {
        /// The number of blocks.
        blocks: usize,
        /// The number of steps between nodes.
        far_steps: usize,
    },
}

impl Execution {
    /// Returns the number of blocks.
    pub fn blocks(self) -> usize {
        match self {
            Self::Eager | Self::ByVendor => 1,
            Self::Messages { blocks }
            | Self::SinglePass { blocks }
            | Self::Moves { blocks }
            | Self::Pipelined { blocks, .. } => blocks,
        }
    }
}

/// The capabilities of links, memory and the element type. They are identical on all ranks, since they determine decisions that must be
/// identical on all ranks. By default there are only messages, since ranks share no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Whether all ranks access each other's memory.
    pub is_shared: bool,
    /// Whether exchanges between nodes can be posted and completed later.
    pub can_pipeline: bool,
    /// The largest eager message between ranks that share memory.
    pub eager_bytes: usize,
    /// The segment size of links between nodes; 0 without segments.
    pub segment_bytes: usize,
    /// Whether elements are accumulated in a wider format than on the wire.
    pub accumulates: bool,
    /// Whether MPI's own collectives carry out the phases that they can.
    pub by_vendor: bool,
}

impl Capabilities {
    /// Returns the capabilities of a modelled machine. In one node, ranks share memory if it has a [single pass](Machine::one_pass). Between
    /// nodes, plans are pipelined if it has a [segment size](Machine::segment_bytes).
    pub fn of(machine: &Machine, topology: &Topology) -> Self {
        let nodes = topology.nodes();
        Self {
            is_shared: machine.one_pass.is_some() && nodes == 1,
            can_pipeline: machine.segment_bytes.is_some() && nodes > 1,
            eager_bytes: machine.eager_bytes,
            segment_bytes: machine.segment_bytes.unwrap_or(0),
            ..Self::default()
        }
    }
}
