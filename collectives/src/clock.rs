//! Predicts the time of a collective on a machine by simulating the plans of all ranks on a [`Machine`].
//!
//! The rules are those of LogGP, with these specifics:
//!
//! - **Rendezvous.** A message starts when both of its ends are ready, and a step ends when both of its halves have. The
//!   rank is ready for its next step [`Machine::step_us`] later.
//! - **Within a node the receiver's core does the work**: it reads the sender's memory, and copies or reduces the data. A
//!   step has at most one receive, so no core ever has two messages to process, and a send costs a rank only the wait for
//!   the receiver. Sending and receiving overlap, since they use two cores. The link's rates must include the contention of
//!   cores for memory bandwidth: measure them on all ranks at once.
//! - **Data that would change while being sent are copied first** ([`Machine::copies`]): a step may send what it
//!   reduces into.
//! - **Between nodes the ports do the work**: every node has one outgoing and one incoming port, shared by its ranks. A
//!   message occupies each for the time of its bytes; others wait in the order in which they became ready. The switch
//!   between the ports is never a bottleneck. The first byte reaches the incoming port α after it has left the outgoing one.
//!
//! If the ranks of a node share memory, a *direct* all-reduce among them, or a direct operation that only moves elements,
//! needs no messages ([`Machine::one_pass`]): each rank waits for all others, and processes its own part of all arrays in a
//! single pass.
//!
//! If a node has fewer cores ([`Machine::cores`]) than ranks, the ranks take turns. On a single node, every turn is simulated. On
//! several nodes, a rank that waits for a message gets its core back after every other rank of that core has had a turn, and no node
//! finishes before its cores have done all the work of its ranks.
//!
//! The clock predicts the [`Execution`] that would run. Hierarchical plans run in lanes between nodes if the machine
//! supports them ([`Machine::segment_bytes`]): that takes the time of one block, plus that of the slowest stage for each
//! further block. Nothing else is pipelined, so an executor that splits messages into segments may be faster.
//!
//! A ring of 16 384 ranks has 537 million messages. But all its nodes do the same at the same time, relative to their
//! neighbours. If the plans have this symmetry, only the ranks of one node are simulated, each representing all ranks with
//! its local rank. The plans of all ranks are compared for that, or, if this would take more than about a second, those of
//! sampled nodes.
//!
//! **Source**: Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: incorporating long messages into the LogP model", SPAA
//! 1995; the rendezvous and the ports are ours.

use crate::algorithm::Algorithm;
use crate::execution::{Capabilities, CompiledPlan, Execution};
use crate::model::Machine;
use crate::operation::Operation;
use crate::plan::Plan;
use crate::world::{Rank, Topology};

mod lanes;
mod outline;
mod play;
mod turns;

use outline::{LIMITS, World};
use turns::Acts;

/// The prediction for a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The time at which the last rank finishes, in microseconds after all have started.
    pub time_us: f64,
    /// The largest number of steps of a rank.
    pub steps: usize,
    /// The largest number of messages that a rank sends.
    pub messages: usize,
    /// The largest number of bytes that a rank sends.
    pub sent_bytes: usize,
}

/// The reason why a collective cannot be predicted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the error texts describe the fields")]
pub enum Unpredictable {
    /// The algorithm does not offer the operation.
    #[error("{algorithm} does not offer {operation}")]
    NotOffered { algorithm: Algorithm, operation: Operation },
    /// The simulation would take minutes, and more memory than there is.
    #[error("more than {more_than} messages, and no ranks that stand for others")]
    TooManyMessages { more_than: usize },
    /// The plans are defective; [`crate::verify()`] describes how.
    #[error("rank {rank} never finishes")]
    DoesNotFinish { rank: Rank },
}

/// Predicts the time of `operation` on arrays of `size_bytes` by this algorithm.
///
/// It is a pure function, so all ranks get the same result.
///
/// ```
/// use unisono_collectives::model::{Link, Machine};
/// use unisono_collectives::{Algorithm, Operation, Topology, clock};
///
/// let link = Link::uniform(2.0, 1.0).unwrap();
/// let machine = Machine { intra: link.clone(), inter: link, one_pass: None, step_us: 0.0, ..Machine::default() };
/// let four = Topology::single_node(4);
/// let ring = clock::predict(Algorithm::Ring, Operation::AllReduce, &four, &machine, 4000, 4).unwrap();
/// // Six steps, each of 2 us and of 1000 bytes.
/// assert_eq!(ring.time_us, 18.0);
/// ```
///
/// # Errors
/// [`Unpredictable`] if the algorithm does not offer the operation, or has too many messages to simulate.
///
/// # Panics
/// If an element has no bytes; if the machine has no core; if `step_us` or `call_us` of the machine is negative or not
/// finite; if the root of the operation is not a rank.
pub fn predict(
    algorithm: Algorithm,
    operation: Operation,
    topology: &Topology,
    machine: &Machine,
    size_bytes: usize,
    element_size_bytes: usize,
) -> Result<Prediction, Unpredictable> {
    assert!(element_size_bytes > 0, "{size_bytes} bytes in elements of 0 bytes");
    let plan =
        algorithm.planner(operation, topology).ok_or(Unpredictable::NotOffered { algorithm, operation })?;
    // A partial element counts as one.
    let count = size_bytes.div_ceil(element_size_bytes);
    let takes_turns = topology.nodes() == 1 && topology.ranks() > machine.cores;
    // Ranks that take turns are not symmetric: one has its turn first.
    let stride = if takes_turns { topology.ranks() } else { topology.stride() };
    let world = World::folded(&plan, topology, stride, count, LIMITS)?;
    let execution = execution(algorithm, operation, topology, machine, (count, element_size_bytes));
    let messages_us = |earliest| match takes_turns {
        true => turns::play(&Acts::of_steps(&world, machine, element_size_bytes, earliest)?, machine),
        false => Ok(play::play(&world, machine, element_size_bytes)?.time_us(&world, machine)),
    };
    let time_us = match execution {
        Execution::SinglePass { .. } | Execution::Moves { .. } => {
            let work_us = one_pass_us(operation, topology.ranks(), machine, count * element_size_bytes);
            if takes_turns {
                turns::play(&Acts::of_one_pass(topology.ranks(), machine, work_us), machine)?
            } else {
                machine.call_us + work_us
            }
        }
        Execution::Eager => messages_us(Some(|rank| plan(rank).flattened().earliest_sends()))?,
        Execution::Messages { .. } | Execution::ByVendor => messages_us(None)?,
        Execution::Lanes { blocks, far_steps } => {
            let block = World::folded(&plan, topology, stride, count.div_ceil(blocks), LIMITS)?;
            lanes::time_us((&world, &block), (blocks, far_steps), machine, element_size_bytes)?
        }
    };
    Ok(Prediction {
        time_us,
        steps: world.busiest.steps,
        messages: world.busiest.messages,
        sent_bytes: world.busiest.sent_count * element_size_bytes,
    })
}

/// The execution of the first rank, and so of all others.
fn execution(
    algorithm: Algorithm,
    operation: Operation,
    topology: &Topology,
    machine: &Machine,
    (count, element_size_bytes): (usize, usize),
) -> Execution {
    let capabilities = Capabilities::of(machine, topology);
    // Only the outline is needed, and the plans of large worlds are long.
    let has_lanes = capabilities.has_lanes && algorithm.descriptor().levels.is_some();
    let compiled = (capabilities.is_shared || has_lanes)
        .then(|| CompiledPlan::new(algorithm, operation, topology, 0))
        .flatten();
    compiled.map_or(Execution::Messages { blocks: 1 }, |compiled| {
        compiled.execution(count, element_size_bytes, &capabilities)
    })
}

/// The time that each rank works if the operation runs in a single pass.
fn one_pass_us(operation: Operation, ranks: usize, machine: &Machine, size_bytes: usize) -> f64 {
    let link = machine.one_pass.as_ref().expect("only ranks that share memory make a single pass");
    let others = match operation {
        Operation::Gather { .. } | Operation::Scatter { .. } => 1.min(ranks - 1),
        _ => ranks - 1,
    };
    let held_bytes = machine.held_bytes(size_bytes, ranks);
    others as f64 * link.time_among_us(size_bytes.div_ceil(ranks), held_bytes, true)
}

/// Predicts when each rank finishes its plan, in microseconds after all have started; `plans` are those of all ranks, rank
/// 0's first, and arrays have `count` elements of `element_size_bytes`.
///
/// Every rank is simulated, by messages, and has a core of its own.
///
/// # Errors
/// [`Unpredictable::DoesNotFinish`] if the plans are defective.
///
/// # Panics
/// If there is not one plan for each rank, or a plan names ranks or chunks that do not exist; and as [`predict`].
pub fn finish_us(
    plans: &[Plan],
    topology: &Topology,
    machine: &Machine,
    count: usize,
    element_size_bytes: usize,
) -> Result<Vec<f64>, Unpredictable> {
    assert_eq!(plans.len(), topology.ranks(), "one plan for each rank");
    Ok(play::play(&World::whole(plans, topology, count), machine, element_size_bytes)?.finish_us)
}

#[cfg(test)]
mod tests;
