//! Programs: the instructions of one rank for one call.
//!
//! A [`Program`] lists every transfer and every wait of an [`Execution`](crate::Execution), in order. [`Program::lower`] creates it,
//! [`verify_programs`] verifies the programs of all ranks, and [`run`] interprets them on arrays.
//!
//! ```
//! use unisono_collectives::execution::{Capabilities, CompiledPlan};
//! use unisono_collectives::program::{self, Instruction, Program};
//! use unisono_collectives::{Algorithm, Operation, Topology};
//!
//! let world = Topology::single_node(2);
//! let programs: Vec<_> = (0..2)
//!     .map(|rank| {
//!         let compiled = CompiledPlan::new(Algorithm::RoundRobin, Operation::AllReduce, &world, rank).unwrap();
//!         Program::lower(&compiled, &compiled.execution(2, 4, &Capabilities::default()))
//!     })
//!     .collect();
//! assert!(matches!(programs[0].instructions[0], Instruction::Exchange(Some(_), Some(_))));
//! let sums = program::run(&programs, &[vec![1, 2], vec![10, 20]], |held, arrived| held + arrived);
//! assert_eq!(sums, Ok(vec![vec![11, 22]; 2]));
//! ```

use crate::schedule::{Chunks, Combine, Source};
use crate::world::Rank;

mod lower;
mod run;
mod verify;

pub use run::run;
pub use verify::{verify_executions, verify_programs};

/// The instructions of one rank for one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The number of chunks of the array.
    pub chunk_count: usize,
    /// The number of blocks of each chunk.
    pub blocks: usize,
    /// The instructions, in order.
    pub instructions: Vec<Instruction>,
}

/// A block of each of some chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The chunks.
    pub chunks: Chunks,
    /// The number of the block.
    pub block: usize,
}

/// An outgoing part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    /// The receiver.
    pub to: Rank,
    /// The part.
    pub part: Part,
    /// The contents to send: the current ones, or those before the call.
    pub source: Source,
}

/// An incoming part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming {
    /// The sender.
    pub from: Rank,
    /// The part.
    pub part: Part,
    /// How it is combined with the buffer.
    pub combine: Combine,
}

/// One instruction of a rank. Every rank has a buffer of its own, and a part is in the rank's own buffer unless it is `theirs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// Sends and receives, and completes when both messages have been received. The outgoing part is read before the incoming one is written.
    Exchange(Option<Outgoing>, Option<Incoming>),
    /// Sends a copy. It blocks while `credits` messages to the same rank have not been received.
    Send {
        /// The part to send, and its receiver.
        outgoing: Outgoing,
        /// The maximum number of messages in flight to the receiver.
        credits: usize,
    },
    /// Blocks until a message has arrived, and combines it.
    Receive(Incoming),
    /// Combines a part of the buffer, as it was before the call, with another part.
    Original {
        /// The part before the call.
        from: Part,
        /// The part that it is combined with.
        to: Part,
        /// How they are combined.
        combine: Combine,
    },
    /// A barrier of all ranks. The instructions between two barriers are a *pass*, in which no two ranks may access the same part of a buffer.
    Sync,
    /// Combines a part of another rank's buffer with one of this rank's.
    Read {
        /// The other rank.
        of: Rank,
        /// The part of its buffer.
        theirs: Part,
        /// The part of this rank's.
        own: Part,
        /// How they are combined.
        combine: Combine,
    },
    /// Stores a part in another rank's buffer.
    Write {
        /// The other rank.
        to: Rank,
        /// The part of its buffer.
        theirs: Part,
        /// The part of this rank's.
        own: Part,
    },
    /// Swaps a part with one of another rank's buffer.
    Swap {
        /// The other rank.
        with: Rank,
        /// The part of its buffer.
        theirs: Part,
        /// The part of this rank's.
        own: Part,
    },
}

impl Instruction {
    /// The other ranks that it names, and the parts.
    fn names(&self) -> (Vec<Rank>, Vec<Part>) {
        match *self {
            Self::Exchange(send, receive) => {
                let ranks = send.map(|send| send.to).into_iter().chain(receive.map(|receive| receive.from));
                let parts = send.map(|send| send.part).into_iter().chain(receive.map(|receive| receive.part));
                (ranks.collect(), parts.collect())
            }
            Self::Send { outgoing, .. } => (vec![outgoing.to], vec![outgoing.part]),
            Self::Receive(incoming) => (vec![incoming.from], vec![incoming.part]),
            Self::Original { from, to, .. } => (Vec::new(), vec![from, to]),
            Self::Sync => (Vec::new(), Vec::new()),
            Self::Read { of: other, theirs, own, .. }
            | Self::Write { to: other, theirs, own }
            | Self::Swap { with: other, theirs, own } => (vec![other], vec![theirs, own]),
        }
    }
}
