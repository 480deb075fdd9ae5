//! A plan of levels in lanes: while one block of an array is between nodes, others are reduced and spread inside of them.
//!
//! A wire is idle in every moment in which nothing is on its way, so a step between nodes is begun long before it is needed, and
//! ended long after. All ranks keep to one timetable. In tick t
//! - what has been under way for [`DEPTH`] ticks is taken in;
//! - step s between nodes begins, of the block t − 1 − s · `DEPTH`, for every s;
//! - block t is reduced in the node;
//! - the block that has all its steps between nodes behind it is spread in the node.
//!
//! So a rank waits in tick t only for what other ranks begin before tick t, or do inside of the node in tick t, and those do not
//! wait for this one: nothing can come to wait for itself.
//!
//! A block is a part of each chunk, so an element stays in its chunk, and the bits stay what they are.

use std::collections::VecDeque;

use unisono_collectives::{
    Algorithm, Chunks, Combine, Operation, Phase, Plan, Rank, Receive, Send, Source, Step, Topology,
};

use super::{CompiledPlan, Run, Task, scaled};
use crate::error::Result;
use crate::transport::mpi::{FAR_SEGMENT, Ticket};
use crate::transport::{Outgoing, Transport};

/// How many blocks of each step are between nodes at a time.
const DEPTH: usize = 2;
/// How much of a chunk is in a block, at least and at most; between the two, there are [`BLOCKS`]. The wire is idle while the first block
/// is reduced and the last one is spread, so they should be many; but for each, ranks of a node wait for each other, which takes
/// long where others want their cores.
const BLOCK_BYTES: std::ops::RangeInclusive<usize> = 32 << 10..=1 << 20;
const BLOCKS: usize = 32;

impl CompiledPlan {
    /// In how many blocks the plan is best run where some ranks do not share memory, and with how many steps between nodes; `None` if
    /// not in lanes. All ranks come to the same answer.
    pub(super) fn lanes(&self, task: &Task<'_>) -> Option<Lanes> {
        let chunk_bytes = task.call.size_bytes() / self.chunk_count;
        let block_bytes =
            whole_segments((chunk_bytes / BLOCKS).clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end()));
        let blocks = chunk_bytes.div_ceil(block_bytes);
        let has_levels = self.algorithm.descriptor().levels.is_some();
        if blocks < 2 || !has_levels || task.method.in_nodes().is_some() {
            return None;
        }
        let find = || far_steps(self.algorithm, task.call.operation, task.topology);
        self.far_steps.get_or_init(find).map(|far_steps| Lanes { blocks, far_steps })
    }
}

/// As much as fits whole segments: a few bytes more would be a message more for each block (measured at 10 Gbit/s, in 16 MiB: 60 and
/// 36 ms).
fn whole_segments(size_bytes: usize) -> usize {
    if size_bytes < FAR_SEGMENT { size_bytes } else { size_bytes - size_bytes % FAR_SEGMENT }
}

/// How a plan is run in lanes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes {
    blocks: usize,
    /// How many steps every rank that has any between nodes has there, in each phase.
    far_steps: usize,
}

/// The steps between nodes, if all plans of an algorithm fit the timetable: each step between nodes is an exchange of two ranks, which is
/// the same step of the same phase to both, and inside of nodes no step sends what it receives into.
fn far_steps(algorithm: Algorithm, operation: Operation, topology: &Topology) -> Option<usize> {
    let plan = |rank| algorithm.plan(operation, topology, rank);
    let plans = (0..topology.ranks()).map(plan).collect::<Option<Vec<_>>>()?;
    let mut far = plans.iter().flat_map(far_phases);
    let steps = far.next()?.schedule.steps().len();
    let is_apart = |step: &Step| match (step.send, step.receive) {
        (Some(send), Some(receive)) => !send.chunks.overlaps(receive.chunks),
        _ => true,
    };
    let near_fits = |phase: &Phase| phase.schedule.steps().iter().all(is_apart);
    let far_fits = |rank: Rank, phase: &Phase| {
        let mut numbered = phase.schedule.steps().iter().enumerate();
        phase.schedule.steps().len() == steps
            && numbered.all(|(number, step)| {
                let Some(with) = partner(step) else { return false };
                let theirs = far_phases(&plans[phase.group.member(with)]);
                let same = theirs.filter(|theirs| theirs.group == phase.group);
                let mut answers = same.filter_map(|theirs| partner(theirs.schedule.steps().get(number)?));
                answers.all(|answer| phase.group.member(answer) == rank)
            })
    };
    let fits = |(rank, plan): (Rank, &Plan)| {
        let phases = plan.phases();
        phases.iter().all(|phase| if is_near(phase) { near_fits(phase) } else { far_fits(rank, phase) })
    };
    plans.iter().enumerate().all(fits).then_some(steps)
}

/// The other rank of an exchange of two, of as many chunks each way, and of what is in the buffer now.
fn partner(step: &Step) -> Option<Rank> {
    let (send, receive) = (step.send?, step.receive?);
    let even = send.to == receive.from && send.chunks.count() == receive.chunks.count();
    (even && send.source == Source::Current).then_some(send.to)
}

/// What a vendor may do is in a node, and nothing else is.
fn is_near(phase: &Phase) -> bool {
    phase.vendor.is_some()
}

fn far_phases(plan: &Plan) -> impl Iterator<Item = &Phase> {
    plan.phases().iter().filter(|phase| !is_near(phase))
}

/// Something that is between nodes.
#[derive(Debug)]
struct Departed {
    ticket: Ticket,
    /// The tick in which it is taken in.
    due: usize,
    block: usize,
    into: Chunks,
    combine: Combine,
    phase: &'static str,
    step: usize,
}

impl Run<'_> {
    pub(super) fn in_lanes(
        &mut self,
        Lanes { blocks, far_steps }: Lanes,
        held: &mut [u8],
        transport: &mut Transport,
    ) -> Result<()> {
        self.blocks = blocks;
        let mut departed = VecDeque::new();
        for tick in 0..=blocks + DEPTH * far_steps {
            while let Some(oldest) = departed.pop_front_if(|oldest: &mut Departed| oldest.due == tick) {
                self.take_in(oldest, held, transport)?;
            }
            for step in (0..far_steps).rev() {
                if let Some(block) = self.block_of(tick, 1 + DEPTH * step) {
                    self.block = block;
                    self.depart(step, tick + DEPTH, &mut departed, held, transport)?;
                }
            }
            if let Some(block) = self.block_of(tick, 0) {
                self.block = block;
                self.take_up_block(held);
                self.in_node(true, held, transport)?;
            }
            if let Some(block) = self.block_of(tick, 1 + DEPTH * far_steps) {
                self.block = block;
                self.in_node(false, held, transport)?;
                self.hand_over_block(held);
            }
        }
        Ok(())
    }

    /// The block that is so many ticks behind.
    fn block_of(&self, tick: usize, behind: usize) -> Option<usize> {
        tick.checked_sub(behind).filter(|&block| block < self.blocks)
    }

    /// Begins one step between nodes, in all phases: those work on different chunks.
    fn depart(
        &mut self,
        number: usize,
        due: usize,
        departed: &mut VecDeque<Departed>,
        held: &mut [u8],
        transport: &mut Transport,
    ) -> Result<()> {
        let phases = self.task.compiled.plan.phases().iter().enumerate();
        for (of_phase, phase) in phases.filter(|(_, phase)| !is_near(phase)) {
            transport.status().at_step(of_phase, number);
            let step = phase.schedule.steps()[number];
            let (send, receive) = step.send.zip(step.receive).expect("an exchange of two");
            for (out, into) in each(send.chunks).zip(each(receive.chunks)) {
                let size_bytes = scaled(self.elements(into), self.format.wire_size_bytes).len();
                let (header, deadlines) = (self.header, self.task.deadlines);
                let (bytes, _) = self.compile(&Send { chunks: out, ..send }, held, None);
                let outgoing = Outgoing { to: phase.group.member(send.to), bytes };
                let ticket = transport
                    .between_nodes()
                    .depart(&header, &outgoing, size_bytes, deadlines)
                    .map_err(|failure| self.task.error(failure, transport, phase.name, number))?;
                let (block, combine, phase) = (self.block, receive.combine, phase.name);
                departed.push_back(Departed { ticket, due, block, into, combine, phase, step: number });
            }
        }
        Ok(())
    }

    fn take_in(&mut self, departed: Departed, held: &mut [u8], transport: &mut Transport) -> Result<()> {
        let Departed { ticket, block, into, combine, phase, step, .. } = departed;
        self.block = block;
        let mut target = self.format.target(&mut held[self.held_range(into)], combine);
        let arrived =
            transport.between_nodes().arrive(&self.header, ticket, &mut target, self.task.deadlines);
        arrived.map_err(|failure| self.task.error(failure, transport, phase, step))
    }

    /// All steps of a block in this node, on the way inward or outward. A block is a part of each chunk, so chunks travel one by one.
    fn in_node(&mut self, inward: bool, held: &mut [u8], transport: &mut Transport) -> Result<()> {
        let is_now = |phase: &Phase| phase.vendor.as_ref().is_some_and(|call| call.is_inward() == inward);
        let phases = self.task.compiled.plan.phases().iter().enumerate();
        for (of_phase, phase) in phases.filter(|(_, phase)| is_now(phase)) {
            for (number, step) in phase.schedule.steps().iter().enumerate() {
                transport.status().at_step(of_phase, number);
                let mut sends = step.send.into_iter().flat_map(|send| each(send.chunks));
                let mut receives = step.receive.into_iter().flat_map(|receive| each(receive.chunks));
                loop {
                    let send = sends.next().map(|chunks| Send { chunks, ..step.send.expect("it sends") });
                    let receive = receives
                        .next()
                        .map(|chunks| Receive { chunks, ..step.receive.expect("it receives") });
                    if send.is_none() && receive.is_none() {
                        break;
                    }
                    self.step(phase, &Step { send, receive }, held, transport)
                        .map_err(|failure| self.task.error(failure, transport, phase.name, number))?;
                }
            }
        }
        Ok(())
    }
}

/// The chunks of a range, one by one.
fn each(chunks: Chunks) -> impl Iterator<Item = Chunks> {
    (chunks.start..chunks.end).map(Chunks::one)
}
