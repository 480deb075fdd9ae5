//! The cost of a collective, counted from its schedules.

use crate::plan::Plan;
use crate::program::{Interpreter, Nothing, Program};
use crate::schedule::Schedule;

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
    let schedules: Vec<_> = plans.iter().map(Plan::flattened).collect();
    let chunk_count = schedules.first()?.chunk_count();
    let nothing = vec![vec![(); chunk_count]; schedules.len()];
    let programs: Vec<_> = schedules.iter().map(Program::of_schedule).collect();
    let mut values = Nothing;
    let mut interpreter = Interpreter::new(&programs, &mut values, nothing);
    interpreter.run();
    if !interpreter.defects.is_empty() {
        return None;
    }
    let busiest = |count: fn(&Schedule, usize) -> usize| {
        schedules.iter().enumerate().map(|(rank, schedule)| count(schedule, rank)).max()
    };
    Some(Cost {
        steps: interpreter.rounds(),
        messages: busiest(|schedule, rank| sent(schedule, rank).count())?,
        sent_chunks: busiest(|schedule, rank| sent(schedule, rank).sum())?,
        chunk_count,
    })
}

/// Returns the size of every message that a rank sends to another, in chunks.
fn sent(schedule: &Schedule, rank: usize) -> impl Iterator<Item = usize> {
    let sends = schedule.steps().iter().filter_map(|step| step.send);
    sends.filter(move |send| send.to != rank).map(|send| send.chunks.count())
}

#[cfg(test)]
pub(crate) mod testing;
