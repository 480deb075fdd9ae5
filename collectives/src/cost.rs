//! The cost of a collective, counted from its plans.

use crate::plan::Plan;
use crate::program::{Elementwise, Instruction, Interpreter, Program};

/// The counted steps and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// The steps on the critical path, if all messages take the same time.
    pub steps: usize,
    /// The largest number of messages that a rank sends.
    pub messages: usize,
    /// The largest number of chunks that a rank sends.
    pub sent_chunks: usize,
    /// The number of chunks of the buffer.
    pub chunk_count: usize,
}

impl Cost {
    /// Returns the traffic of the rank that sends most, as a multiple of the array.
    pub fn sent_arrays(&self) -> f64 {
        self.sent_chunks as f64 / self.chunk_count as f64
    }
}

/// Counts the cost of the plans of all ranks; `None` if they do not finish (see [`crate::verify()`]).
///
/// ```
/// use unisono_collectives::{Algorithm, Operation, Topology, cost};
///
/// let plans = Algorithm::Ring.plans(Operation::AllReduce, &Topology::single_node(4)).unwrap();
/// let cost = cost::count(&plans).unwrap();
/// assert_eq!((cost.steps, cost.sent_arrays()), (6, 1.5));
/// ```
///
/// # Panics
/// If a plan names ranks or chunks that do not exist.
pub fn count(plans: &[Plan]) -> Option<Cost> {
    let chunk_count = plans.first()?.chunk_count();
    let empty = vec![vec![Vec::new(); chunk_count]; plans.len()];
    let programs: Vec<_> = plans.iter().map(Program::of_plan).collect();
    let nothing = |(), ()| {};
    let mut values = Elementwise::<()>(&nothing);
    let interpreter = Interpreter::run(&programs, &mut values, empty);
    if !interpreter.defects.is_empty() {
        return None;
    }
    let busiest = |count: fn(&Program, usize) -> usize| {
        programs.iter().enumerate().map(|(rank, program)| count(program, rank)).max()
    };
    Some(Cost {
        steps: interpreter.rounds(),
        messages: busiest(|program, rank| sent(program, rank).count())?,
        sent_chunks: busiest(|program, rank| sent(program, rank).sum())?,
        chunk_count,
    })
}

/// Returns the size of every message that a rank sends to another, in chunks.
fn sent(program: &Program, rank: usize) -> impl Iterator<Item = usize> {
    program.instructions.iter().filter_map(move |(_, instruction)| match instruction {
        Instruction::Exchange(Some(send), _) if send.to != rank => Some(send.part.chunks.count()),
        _ => None,
    })
}

#[cfg(test)]
pub(crate) mod testing;
