//! Predicts the time of a collective on a machine by simulating the plans of all ranks on a [`Machine`].
//!
//! The rules are those of LogGP, with these specifics:
//!
//! - **Rendezvous.** A message starts when both of its ends are ready, and a step ends when both of its halves have ended. The
//!   rank is ready for its next step [`Machine::step_us`] later.
//! - **Within a node the receiver's core does the work**: it reads the sender's memory, and copies or reduces the data. A
//!   step has at most one receive, so no core ever has two messages to process, and a send costs a rank only the wait for
//!   the receiver. Sending and receiving overlap, since they use two cores. The link's rates must include the contention of
//!   cores for memory bandwidth: measure them on all ranks at once.
//! - **Data that would change while being sent are copied first**, since a step may send the data that it reduces into. This takes as long as the
//!   bytes of a message of their size within a node. The time of a short message includes it.
//! - **The sender's core copies a long message that is staged** ([`Machine::staging_bytes`]), while the receiver's core takes it. So a rank that
//!   sends and receives at the same time has the work of both. Ranks that share cores switch whenever the staging memory is full or empty. If it can
//!   hold the whole message, the sender continues once it has copied it.
//! - **Between nodes the ports do the work**: every node has one outgoing and one incoming port, shared by its ranks. A
//!   message occupies each for the time of its bytes; others wait in the order in which they became ready. The switch
//!   between the ports is never a bottleneck. The first byte reaches the incoming port α after it has left the outgoing one.
//!
//! If the ranks of a node share memory, a *direct* all-reduce among them, or a direct operation that only moves elements,
//! needs no messages ([`Machine::one_pass`]): each rank waits for all others, and processes its own part of all arrays in a
//! single pass.
//!
//! If a node has fewer cores ([`Machine::cores`]) than ranks, the ranks take turns on them, and every turn is simulated.
//!
//! The clock interprets the [`Program`](crate::Program)s that would run. Short messages among ranks that share memory are eager: their senders
//! continue. Between nodes, hierarchical plans are pipelined if the machine supports it ([`Machine::segment_bytes`]). They take the time of one
//! block, plus that of the slowest stage for each further block. There is no other pipelining, so an executor that splits messages into segments may
//! be faster.
//!
//! A ring of 16 384 ranks has 537 million messages. But all its nodes perform the same steps at the same time, relative to their
//! neighbours. If the plans have this symmetry, only the ranks of one node are simulated, each representing all ranks with
//! its local rank. To detect it, the plans of all ranks are compared, or those of sampled nodes if that would take more than about a
//! second.
//!
//! **Source**: Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: incorporating long messages into the LogP model", SPAA
//! 1995; the rendezvous and the ports are Unisono's.

use crate::algorithm::Algorithm;
use crate::execution::{Capabilities, CompiledPlan, Execution, PIPELINE_DEPTH};
use crate::model::{Link, Machine};
use crate::operation::Operation;
use crate::partition::Partition;
use crate::plan::Plan;
use crate::world::{Rank, Topology};

mod engine;
mod outline;

use engine::simulate;
use outline::{LIMITS, World};

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
    /// The simulation would take minutes, and more memory than is available.
    #[error("more than {more_than} messages, and no ranks that represent others")]
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
    let not_offered = Unpredictable::NotOffered { algorithm, operation };
    let plan = algorithm.planner(operation, topology).ok_or(not_offered.clone())?;
    let compiled = CompiledPlan::new(algorithm, operation, topology, 0).ok_or(not_offered)?;
    // A partial element counts as one.
    let count = size_bytes.div_ceil(element_size_bytes);
    let execution = compiled.execution(count, element_size_bytes, &Capabilities::of(machine, topology));
    // Ranks that take turns on the cores of a node are not symmetric, since one has its turn first.
    let is_oversubscribed = topology.nodes() == 1 && topology.ranks() > machine.cores;
    let stride = if is_oversubscribed { topology.ranks() } else { topology.stride() };
    let mut busiest = Prediction { time_us: 0.0, steps: 0, messages: 0, sent_bytes: 0 };
    let mut world = |count, execution| {
        let program = |rank| {
            let plan = plan(rank);
            busiest.include(&plan, rank, (count, element_size_bytes));
            compiled.lowered((rank, &plan), execution)
        };
        World::folded(program, topology, stride, count, LIMITS)
    };
    let time_us = match execution {
        Execution::Pipelined { blocks, far_steps } => {
            let block_count = count.div_ceil(blocks);
            let steps = Execution::Messages { blocks: 1 };
            let (block, whole) = (world(block_count, steps)?, world(count, steps)?);
            let no_wire = Link::uniform(0.0, f64::MAX).expect("an infinitely fast link is valid");
            let no_wire = Machine { inter: no_wire, call_us: 0.0, ..machine.clone() };
            let alone = simulate(&block, machine, (block_count, element_size_bytes))?;
            let inside_us = simulate(&block, &no_wire, (block_count, element_size_bytes))?.time_us();
            let whole = simulate(&whole, machine, (count, element_size_bytes))?;
            // In the node, ranks work on one block at a time. A port carries one block after the other, at the rate of the whole: buffers
            // on the way make a single block faster than a long sequence. And between the start and the end of a step between nodes,
            // `PIPELINE_DEPTH` blocks are in flight.
            let step_us = (alone.time_us() - inside_us) / (PIPELINE_DEPTH * far_steps.max(1)) as f64;
            let port_us = whole.busiest_port_us / blocks as f64;
            let stages_us = [inside_us, alone.busiest_port_us, port_us, step_us];
            alone.time_us() + (blocks - 1) as f64 * stages_us.into_iter().fold(0.0, f64::max)
        }
        _ => simulate(&world(count, execution)?, machine, (count, element_size_bytes))?.time_us(),
    };
    Ok(Prediction { time_us, ..busiest })
}

impl Prediction {
    fn include(&mut self, plan: &Plan, rank: Rank, (count, element_size_bytes): (usize, usize)) {
        let partition = Partition::fair(count, plan.chunk_count());
        let (mut steps, mut messages, mut sent_count) = (0, 0, 0);
        for phase in plan.phases() {
            steps += phase.schedule.steps().len();
            for send in phase.schedule.steps().iter().filter_map(|step| step.send) {
                // A message of a rank to itself costs nothing here.
                if phase.group.member(send.to) != rank {
                    messages += 1;
                    sent_count += partition.elements(send.chunks).len();
                }
            }
        }
        self.steps = self.steps.max(steps);
        self.messages = self.messages.max(messages);
        self.sent_bytes = self.sent_bytes.max(sent_count * element_size_bytes);
    }
}

#[cfg(test)]
mod tests;
