//! Programs: the instructions of one rank for one call.
//!
//! A [`Program`] lists every transfer and every wait of a rank, in order.
//! [`CompiledPlan::program`](crate::execution::CompiledPlan::program) creates it, [`verify_programs`](crate::verify_programs)
//! verifies the programs of all ranks, [`explain_programs`](crate::explain_programs) draws them, and [`run`] interprets them on arrays.
//!
//! ```
//! use unisono_collectives::execution::{Capabilities, CompiledPlan};
//! use unisono_collectives::program::{self, Instruction};
//! use unisono_collectives::{Algorithm, Operation, Topology};
//!
//! let world = Topology::single_node(2);
//! let compile = |rank| CompiledPlan::new(Algorithm::RoundRobin, Operation::AllReduce, &world, rank).unwrap();
//! let programs: Vec<_> = (0..2).map(|rank| compile(rank).program(2, 4, &Capabilities::default())).collect();
//! assert!(matches!(programs[0].instructions[0].1, Instruction::Exchange(Some(_), Some(_))));
//! let sums = program::run(&programs, &[vec![1, 2], vec![10, 20]], |held, arrived| held + arrived);
//! assert_eq!(sums, Ok(vec![vec![11, 22]; 2]));
//! ```

use crate::plan::{Phase, Plan};
use crate::schedule::{Chunks, Combine, Receive, Send, Source};
use crate::world::Rank;

mod run;
mod values;

pub(crate) use run::Interpreter;
pub use run::run;
pub(crate) use values::{Arrival, Elementwise, Event, Values};

/// The instructions of one rank for one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The number of chunks of the array.
    pub chunk_count: usize,
    /// The number of blocks of each chunk.
    pub blocks: usize,
    /// The number of times that the rank runs all instructions. Each time they name the next `blocks / rounds` blocks: in round r,
    /// block b stands for block `r * blocks / rounds + b`.
    pub rounds: usize,
    /// The instructions of the first round in order, and the step of the plan that each one belongs to.
    pub instructions: Vec<(Place, Instruction)>,
}

/// The position of a step in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The name of its phase.
    pub name: &'static str,
    /// The number of its phase.
    pub phase: usize,
    /// Its number in the phase.
    pub step: usize,
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
    /// The combination with the buffer.
    pub combine: Combine,
}

/// One instruction of a rank. Every rank has its own buffer, and a part is in the rank's own buffer unless it is `theirs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// Sends and receives, and completes when both messages have been received. The outgoing part is read before the incoming one is written.
    Exchange(Option<Outgoing>, Option<Incoming>),
    /// Sends a copy, and announces a message, which a later `Complete` receives. It does not block.
    Post(Option<Outgoing>, Option<Incoming>),
    /// Completes the oldest `Post` that is not completed: blocks until the message that it announced has arrived, and combines it.
    Complete,
    /// Sends a copy. It blocks while [`SENDS_AHEAD`](crate::SENDS_AHEAD) messages to the same rank have not been received.
    Send(Outgoing),
    /// Permits another rank to access a part of this rank's buffer in the pass that the next `Sync` begins.
    Lend {
        /// The other rank.
        to: Rank,
        /// The part.
        part: Part,
        /// Whether it may be read.
        read: bool,
        /// Whether it may be written to.
        written: bool,
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
        /// The combination of both.
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
    /// A collective of a vendor among the ranks of a phase, which may replace the next `steps` instructions.
    Vendor {
        /// The number of the phase.
        phase: usize,
        /// The number of instructions that it replaces.
        steps: usize,
    },
}

/// Returns the halves of all steps of a plan, for its first block.
pub(crate) fn steps(plan: &Plan) -> impl Iterator<Item = (Place, Option<Outgoing>, Option<Incoming>)> {
    plan.phases().iter().enumerate().flat_map(|(number, phase)| {
        phase.schedule.steps().iter().enumerate().map(move |(step, halves)| {
            let send = halves.send.map(|send| sent(phase, send, 0));
            let receive = halves.receive.map(|receive| received(phase, receive, 0));
            (Place { name: phase.name, phase: number, step }, send, receive)
        })
    })
}

pub(crate) fn sent(phase: &Phase, send: Send, block: usize) -> Outgoing {
    let part = Part { chunks: send.chunks, block };
    Outgoing { to: phase.group.member(send.to), part, source: send.source }
}

pub(crate) fn received(phase: &Phase, receive: Receive, block: usize) -> Incoming {
    let part = Part { chunks: receive.chunks, block };
    Incoming { from: phase.group.member(receive.from), part, combine: receive.combine }
}

impl Program {
    /// Returns the program that carries out the steps of a plan by messages, each step before the next.
    ///
    /// ```
    /// use unisono_collectives::{Algorithm, Operation, Program, Topology, program};
    ///
    /// let plans = Algorithm::Ring.plans(Operation::AllReduce, &Topology::single_node(3)).unwrap();
    /// let programs: Vec<_> = plans.iter().map(Program::of_plan).collect();
    /// let inputs = [[1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400]].map(Vec::from);
    /// let sums = program::run(&programs, &inputs, |held, arrived| held + arrived);
    /// assert_eq!(sums, Ok(vec![vec![111, 222, 333, 444]; 3]));
    /// ```
    pub fn of_plan(plan: &Plan) -> Self {
        let steps = steps(plan).map(|(place, send, receive)| (place, Instruction::Exchange(send, receive)));
        Self { chunk_count: plan.chunk_count(), blocks: 1, rounds: 1, instructions: steps.collect() }
    }

    /// Returns whether the program reads elements as they were before the call, so that a copy must be kept.
    pub fn reads_original(&self) -> bool {
        self.instructions.iter().any(|(_, instruction)| match instruction {
            Instruction::Exchange(Some(send), _)
            | Instruction::Post(Some(send), _)
            | Instruction::Send(send) => send.source == Source::Original,
            _ => false,
        })
    }

    /// Returns the instruction that a rank runs after `before` others, with the block of its round; `None` at the end.
    fn instruction(&self, before: usize) -> Option<Instruction> {
        let round = before.checked_div(self.instructions.len()).filter(|&round| round < self.rounds)?;
        let (_, mut instruction) = self.instructions[before % self.instructions.len()];
        instruction.parts_mut().for_each(|part| part.block += round * (self.blocks / self.rounds));
        Some(instruction)
    }
}

impl Instruction {
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        let parts = match self {
            Self::Exchange(send, receive) | Self::Post(send, receive) => {
                [send.as_mut().map(|send| &mut send.part), receive.as_mut().map(|receive| &mut receive.part)]
            }
            Self::Send(Outgoing { part, .. }) | Self::Lend { part, .. } => [Some(part), None],
            Self::Read { theirs: one, own: other, .. }
            | Self::Write { theirs: one, own: other, .. }
            | Self::Swap { theirs: one, own: other, .. } => [Some(one), Some(other)],
            Self::Complete | Self::Sync | Self::Vendor { .. } => [None, None],
        };
        parts.into_iter().flatten()
    }

    /// Returns the other ranks that it names.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let ranks = match *self {
            Self::Exchange(send, receive) | Self::Post(send, receive) => {
                [send.map(|send| send.to), receive.map(|receive| receive.from)]
            }
            Self::Send(Outgoing { to: other, .. })
            | Self::Lend { to: other, .. }
            | Self::Read { of: other, .. }
            | Self::Write { to: other, .. }
            | Self::Swap { with: other, .. } => [Some(other), None],
            Self::Complete | Self::Sync | Self::Vendor { .. } => [None, None],
        };
        ranks.into_iter().flatten()
    }
}
