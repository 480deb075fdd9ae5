//! How long a collective takes on a machine: the plans of all ranks played against a [`Machine`].
//!
//! In the manner of LogGP, with these rules:
//!
//! - **Ranks meet.** A message starts when both of its ends are ready, and a step ends when both of its
//!   halves have. Then the rank takes [`Machine::step_us`] to be ready for its next step.
//! - **In a node the receiver's core does the work**: it reads the sender's memory, and puts it in place or
//!   reduces it. A step has one receive, so no core ever has two messages to work on, and a rank's send
//!   costs it nothing but the wait until the other is done. Sending and receiving overlap, since they are
//!   the work of two cores. That cores share the memory's bandwidth must be in the link's rates, if they are
//!   measured on all ranks at once.
//! - **What would change on its way is copied first** ([`Machine::copy_gb_per_s`]): a step may send what it
//!   reduces into.
//! - **Between nodes the ports do the work**: every node has one port out and one port in, which its ranks
//!   share. A message occupies each for as long as its bytes take; those that come while it is occupied wait
//!   in the order in which they were ready. What is between the ports (the switch) is never in the way. The
//!   first byte is α later at the port in than at the port out.
//!
//! Where the ranks of a node share memory, a *direct* all-reduce among them, or one that only moves elements, needs no messages
//! ([`Machine::one_pass`]): each rank waits for each other one, and works on its own part of all arrays in one pass.
//!
//! If a node has fewer cores ([`Machine::cores`]) than ranks, these take turns. In a world of one node, every turn is simulated. In one
//! of several nodes, a rank that waits for a message gets its core back after each other rank of that core has had it once, and no
//! node finishes before its cores have done all of its ranks' work.
//!
//! What is timed is the [`Execution`] that would run. Plans of levels run in lanes between nodes where the machine has
//! them ([`Machine::segment_bytes`]): that takes as long as one block, and for each block after it as long as the slowest stage. Nothing
//! else is pipelined: an executor that cuts messages into segments may be faster than this.
//!
//! In a world of 16 384 ranks a ring has 537 million messages. But all its nodes do the same at the same
//! time, each to its own neighbours. So where plans show that, only the ranks of one node are played, and each
//! stands for all ranks that have its place in their nodes. Every rank's plan is looked at; only where that
//! would take longer than a second or so are those of many nodes all over the world.
//!
//! **Source**: Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: incorporating long messages into the LogP
//! model", SPAA 1995; the rendezvous and the ports are ours.

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

/// What the clock says of a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// When the last rank is done, in microseconds after all began.
    pub time_us: f64,
    /// How many steps the rank has that has most.
    pub steps: usize,
    /// How many messages the rank sends that sends most messages.
    pub messages: usize,
    /// How many bytes the rank sends that sends most bytes.
    pub sent_bytes: usize,
}

/// Why the clock says nothing of a collective.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each sentence names its fields")]
pub enum Unpredictable {
    /// There is nothing to play.
    #[error("{algorithm} does not offer {operation}")]
    NotOffered { algorithm: Algorithm, operation: Operation },
    /// It would take minutes, and more memory than there is.
    #[error("more than {more_than} messages, and no ranks that stand for others")]
    TooManyMessages { more_than: usize },
    /// The plans are defective: [`crate::verify()`] says how.
    #[error("rank {rank} never finishes")]
    DoesNotFinish { rank: Rank },
}

/// How long `operation` on arrays of `size_bytes` takes if this algorithm carries it out.
///
/// It is a pure function, so all ranks that ask get the same answer.
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
/// [`Unpredictable`] if the algorithm does not offer the operation, or its messages are too many to play.
///
/// # Panics
/// If an element has no bytes; if the machine has no core; if `step_us` or `call_us` of the machine is negative or not finite; if the
/// root of the operation is not in the world.
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
    // What is no whole element counts as one.
    let count = size_bytes.div_ceil(element_size_bytes);
    let takes_turns = topology.nodes() == 1 && topology.ranks() > machine.cores;
    // Ranks that take turns are not alike: one has its turn first.
    let stride = if takes_turns { topology.ranks() } else { topology.stride() };
    let world = World::folded(&plan, topology, stride, count, LIMITS)?;
    let execution = execution(algorithm, operation, topology, machine, (count, element_size_bytes));
    let messages_us = |earliest| match takes_turns {
        true => turns::play(&Acts::of_steps(&world, machine, element_size_bytes, earliest)?, machine),
        false => Ok(play::play(&world, machine, element_size_bytes)?.time_us(&world, machine)),
    };
    let time_us = match execution {
        Execution::SinglePass { .. } | Execution::Moves(_) => {
            let work_us = one_pass_us(operation, topology.ranks(), machine, count * element_size_bytes);
            if takes_turns {
                turns::play(&Acts::of_one_pass(topology.ranks(), machine, work_us), machine)?
            } else {
                machine.call_us + work_us
            }
        }
        Execution::Eager(_) => messages_us(Some(|rank| plan(rank).flattened().earliest_sends()))?,
        Execution::Messages { .. } => messages_us(None)?,
        Execution::Lanes(timetable) => {
            let block = World::folded(&plan, topology, stride, count.div_ceil(timetable.blocks), LIMITS)?;
            lanes::time_us((&world, &block), &timetable, machine, element_size_bytes)?
        }
    };
    Ok(Prediction {
        time_us,
        steps: world.busiest.steps,
        messages: world.busiest.messages,
        sent_bytes: world.busiest.sent_count * element_size_bytes,
    })
}

/// How the first rank carries out its plan, and with it all others.
fn execution(
    algorithm: Algorithm,
    operation: Operation,
    topology: &Topology,
    machine: &Machine,
    (count, element_size_bytes): (usize, usize),
) -> Execution {
    let capabilities = Capabilities::of(machine, topology);
    // Nothing else is asked of a plan, and those of large worlds are long.
    let has_lanes = capabilities.has_lanes && algorithm.descriptor().levels.is_some();
    let compiled = (capabilities.is_shared || has_lanes)
        .then(|| CompiledPlan::new(algorithm, operation, topology, 0))
        .flatten();
    compiled.map_or(Execution::Messages { blocks: 1, by_vendor: false }, |compiled| {
        compiled.execution(count, element_size_bytes, &capabilities)
    })
}

/// How long each rank works if the operation is carried out in a single pass.
fn one_pass_us(operation: Operation, ranks: usize, machine: &Machine, size_bytes: usize) -> f64 {
    let link = machine.one_pass.as_ref().expect("only ranks that share memory make a single pass");
    let others = match operation {
        Operation::Gather { .. } | Operation::Scatter { .. } => 1.min(ranks - 1),
        _ => ranks - 1,
    };
    let held_bytes = machine.held_bytes(size_bytes, ranks);
    others as f64 * link.time_among_us(size_bytes.div_ceil(ranks), held_bytes, true)
}

/// When each rank is done with its plan, in microseconds after all began; `plans` are those of all ranks, rank
/// 0 first, and arrays have `count` elements of `element_size_bytes`.
///
/// Every rank is played, however many there are, and by messages; each has a core.
///
/// # Errors
/// [`Unpredictable::DoesNotFinish`] if the plans are defective.
///
/// # Panics
/// If there is not one plan for each rank, or a plan names ranks or chunks that do not exist; and as
/// [`predict`].
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
