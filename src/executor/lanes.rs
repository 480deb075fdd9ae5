//! Executes a multi-level plan in lanes, as its [`Timetable`] says.

use std::collections::VecDeque;

use unisono_collectives::execution::{LaneAct, Timetable};
use unisono_collectives::{Chunks, Combine, Phase, Receive, Send, Step};

use super::{Run, scaled};
use crate::error::Result;
use crate::transport::{Outgoing, Ticket, Transport};

/// A posted exchange between nodes.
#[derive(Debug)]
struct Posted {
    ticket: Ticket,
    block: usize,
    into: Chunks,
    combine: Combine,
    phase: &'static str,
    step: usize,
}

impl Run<'_> {
    pub(super) fn in_lanes(
        &mut self,
        timetable: &Timetable,
        held: &mut [u8],
        transport: &mut Transport,
    ) -> Result<()> {
        let mut posted = VecDeque::new();
        for act in &timetable.acts {
            match *act {
                LaneAct::Post { step, block } => {
                    self.block = block;
                    self.post(step, &mut posted, held, transport)?;
                }
                LaneAct::Complete { step, block } => {
                    let is_now = |oldest: &mut Posted| (oldest.step, oldest.block) == (step, block);
                    while let Some(oldest) = posted.pop_front_if(is_now) {
                        self.complete(oldest, held, transport)?;
                    }
                }
                LaneAct::Inward { block } => {
                    self.block = block;
                    self.take_up_block(held);
                    self.in_node(true, held, transport)?;
                }
                LaneAct::Outward { block } => {
                    self.block = block;
                    self.in_node(false, held, transport)?;
                    self.hand_over_block(held);
                }
            }
        }
        Ok(())
    }

    /// Posts one step between nodes, in all inter-node phases: these work on different chunks.
    fn post(
        &mut self,
        number: usize,
        posted: &mut VecDeque<Posted>,
        held: &mut [u8],
        transport: &mut Transport,
    ) -> Result<()> {
        let phases = self.task.compiled.plan().phases().iter().enumerate();
        for (of_phase, phase) in phases.filter(|(_, phase)| !phase.is_in_node()) {
            transport.status().at_step(of_phase, number);
            let step = phase.schedule.steps()[number];
            let (send, receive) = step.send.zip(step.receive).expect("an exchange of two");
            for (out, into) in each(send.chunks).zip(each(receive.chunks)) {
                let size_bytes = scaled(self.elements(into), self.format.wire_size_bytes).len();
                let (header, deadlines) = (self.header, self.task.deadlines);
                let (bytes, _) = self.compile(&Send { chunks: out, ..send }, held, None)?;
                let outgoing = Outgoing { to: phase.group.member(send.to), bytes };
                let ticket = transport
                    .post(&header, &outgoing, size_bytes, deadlines)
                    .map_err(|failure| self.task.error(failure, transport, phase.name, number))?;
                let (block, combine, phase) = (self.block, receive.combine, phase.name);
                posted.push_back(Posted { ticket, block, into, combine, phase, step: number });
            }
        }
        Ok(())
    }

    fn complete(&mut self, posted: Posted, held: &mut [u8], transport: &mut Transport) -> Result<()> {
        let Posted { ticket, block, into, combine, phase, step, .. } = posted;
        self.block = block;
        let mut target = self.format.target(&mut held[self.held_range(into)], combine);
        let completed = transport.complete(&self.header, ticket, &mut target, self.task.deadlines);
        completed.map_err(|failure| self.task.error(failure, transport, phase, step))
    }

    /// Runs all steps of a block in this node, inward or outward. A block is a part of each chunk, so chunks are sent one by
    /// one.
    fn in_node(&mut self, inward: bool, held: &mut [u8], transport: &mut Transport) -> Result<()> {
        let is_now = |phase: &Phase| phase.vendor.as_ref().is_some_and(|call| call.is_inward() == inward);
        let phases = self.task.compiled.plan().phases().iter().enumerate();
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
