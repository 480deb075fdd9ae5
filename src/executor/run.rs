//! Runs a bound program: one operation after the other.

use std::collections::VecDeque;
use std::ops::Range;

use unisono_collectives::program::Place;
use unisono_collectives::{Chunks, Source};

use super::Task;
use super::bound::{Bound, Halves, Move, Op, Pass, Piece, Receive, Send};
use super::format::Format;
use crate::call::{Call, scaled};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::{self, ReduceOp};
use crate::memory::Scratch;
use crate::transport::{Fabric, Failure, Incoming, Outgoing};

mod pass;

/// Runs a program that only sends and receives, in the user's buffer. [`Run`] would be slower: the stores of its state would queue behind
/// the stores of messages, whose cache lines another core holds (10 % of the time of a call with 8 bytes).
pub(super) fn short(bound: &Bound, task: &Task<'_>, buffer: &mut [u8], transport: &mut Fabric) -> Result<()> {
    let (Task { header, deadlines, .. }, format) = (task, &bound.format);
    for (place, op) in &bound.ops {
        let (outgoing, incoming) = match op {
            Op::Send(Send { to, piece, .. }) => {
                let bytes = &buffer[scaled(piece.all.clone(), format.wire_size_bytes)];
                (Some(Outgoing { to: *to, bytes }), None)
            }
            Op::Receive(Receive { from, piece, combine }) => {
                if place.phase + place.step > 0 {
                    transport.status().at_step(place.phase, place.step);
                }
                let place = &mut buffer[scaled(piece.all.clone(), format.wire_size_bytes)];
                (None, Some(Incoming { from: *from, target: format.target(place, *combine) }))
            }
            _ => unreachable!("a short program only sends and receives"),
        };
        transport
            .exchange(header, outgoing, incoming, deadlines)
            .map_err(|failure| task.error(failure, transport, *place))?;
    }
    Ok(())
}

pub(super) struct Run<'a> {
    pub(super) bound: &'a Bound,
    pub(super) task: &'a Task<'a>,
    /// The buffer that operations work on: the user's, or an accumulator of wider elements.
    pub(super) held: &'a mut [u8],
    /// The user's buffer, if elements are accumulated in a wider format.
    pub(super) narrow: &'a mut [u8],
    /// The input in wire format, if it is needed.
    pub(super) original: &'a [u8],
    /// Staging for data that would change while in transit, and for blocks that a pass widens.
    pub(super) work: &'a mut Scratch,
    pub(super) round: usize,
    /// The receives of exchanges that are not completed, oldest first.
    pub(super) posted: VecDeque<Option<&'a Receive>>,
}

impl<'a> Run<'a> {
    #[inline]
    pub(super) fn run(mut self, transport: &mut Fabric) -> Result<()> {
        let bound = self.bound;
        for round in 0..bound.rounds {
            self.round = round;
            for (place, op) in &bound.ops {
                // In a pass, the round is reported as the step.
                let step = if bound.has_passes { round } else { place.step };
                // Operations that wait for other ranks publish their position; a send does not wait.
                if !matches!(op, Op::Send(_)) && place.phase + step + round > 0 {
                    transport.status().at_step(place.phase, step);
                }
                let place = Place { step, ..*place };
                self.op(op, transport).map_err(|failure| self.task.error(failure, transport, place))?;
            }
        }
        Ok(())
    }

    #[inline]
    fn op(&mut self, op: &'a Op, transport: &mut Fabric) -> Result<(), Failure> {
        match op {
            Op::Send(send) => self.exchange(Some(send), None, transport)?,
            Op::Receive(receive) => self.exchange(None, Some(receive), transport)?,
            Op::Exchange(halves) => self.exchange(halves.0.as_ref(), halves.1.as_ref(), transport)?,
            Op::Post(halves) => self.post(halves, transport)?,
            Op::Complete => self.complete(transport)?,
            Op::Pass(pass) => self.pass(pass, transport)?,
            Op::Vendor(phase) => self.by_vendor(*phase, transport)?,
            Op::Widen(block) => self.widen(*block),
            Op::Finish(block) => self.finish(*block),
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        send: Option<&Send>,
        receive: Option<&Receive>,
        transport: &mut Fabric,
    ) -> Result<(), Failure> {
        let Task { header, deadlines, .. } = self.task;
        let (rank, format) = (self.bound.rank, self.bound.format);
        let (bytes, held) = self.bytes_and_place(send, receive).map_err(Failure::Error)?;
        let outgoing = send.map(|send| Outgoing { to: send.to, bytes });
        let mut incoming = receive
            .map(|receive| Incoming { from: receive.from, target: format.target(held, receive.combine) });
        // A step of a rank with itself needs no transport.
        if let (Some(to_self), Some(from_self)) = (&outgoing, &mut incoming)
            && to_self.to == rank
            && from_self.from == rank
        {
            from_self.target.accept(0, to_self.bytes);
            return Ok(());
        }
        transport.exchange(header, outgoing, incoming, deadlines)
    }

    fn post(&mut self, halves: &'a Halves, transport: &mut Fabric) -> Result<(), Failure> {
        let (send, receive) = (halves.0.as_ref(), halves.1.as_ref());
        let size_bytes = |piece| self.bytes(piece, self.bound.format.wire_size_bytes).len();
        let incoming = receive.map(|receive| (receive.from, size_bytes(&receive.piece)));
        let header = self.task.header;
        let (bytes, _) = self.bytes_and_place(send, None).map_err(Failure::Error)?;
        let outgoing = send.map(|send| Outgoing { to: send.to, bytes });
        transport.post(header, outgoing, incoming)?;
        self.posted.push_back(receive);
        Ok(())
    }

    fn complete(&mut self, transport: &mut Fabric) -> Result<(), Failure> {
        let Task { header, deadlines, .. } = self.task;
        let receive = self.posted.pop_front().expect("a program completes what it has posted");
        let mut target = receive.map(|receive| {
            let place = self.bytes(&receive.piece, self.bound.format.held_size_bytes);
            self.bound.format.target(&mut self.held[place], receive.combine)
        });
        transport.complete(header, target.as_mut(), deadlines)
    }

    /// Returns the bytes to send and the place of the received ones, which are disjoint.
    fn bytes_and_place(
        &mut self,
        send: Option<&Send>,
        receive: Option<&Receive>,
    ) -> Result<(&[u8], &mut [u8])> {
        let format = self.bound.format;
        let received = receive.map_or(0..0, |receive| self.bytes(&receive.piece, format.held_size_bytes));
        let Some(Send { piece, source, .. }) = send else { return Ok((&[], &mut self.held[received])) };
        let sends = self.bytes(piece, format.held_size_bytes);
        if *source == Source::Original {
            return Ok((&self.original[self.bytes(piece, format.wire_size_bytes)], &mut self.held[received]));
        }
        if let Some(accumulator) = format.accumulator {
            let size_bytes = sends.len() / format.held_size_bytes * format.wire_size_bytes;
            let rounded = self.work.reserve(size_bytes)?;
            (accumulator.round)(&mut self.held[sends], rounded);
            return Ok((rounded, &mut self.held[received]));
        }
        Ok(if sends.end <= received.start {
            let (before, after) = self.held.split_at_mut(received.start);
            (&before[sends], &mut after[..received.len()])
        } else if received.end <= sends.start {
            let (before, after) = self.held.split_at_mut(sends.start);
            (&after[..sends.len()], &mut before[received])
        } else {
            // The incoming data is reduced into the data being sent.
            (self.work.copy_of(&self.held[sends])?, &mut self.held[received])
        })
    }

    #[inline]
    fn bytes(&self, piece: &Piece, size_bytes: usize) -> Range<usize> {
        scaled(self.bound.elements(piece, self.round), size_bytes)
    }

    /// Runs a phase as a vendor's collective, among the ranks of its group.
    fn by_vendor(&mut self, phase: usize, transport: &mut Fabric) -> Result<(), Failure> {
        let bound = self.bound;
        let phase = &bound.compiled.plan().phases()[phase];
        let vendor = phase.vendor.as_ref().expect("a phase with a vendor's collective");
        let dtype = bound.format.accumulator.map_or(bound.call.dtype, |_| DType::F32);
        let call = Call::new(vendor.operation, bound.call.op, dtype, bound.call.count);
        let parts: Vec<_> = vendor.parts.iter().map(|&part| bound.partition.elements(part)).collect();
        transport.by_vendor(Some(&phase.group), &call, &parts, self.held).map_err(Failure::Error)
    }

    /// Widens the elements of a block from the user's buffer, if there is an accumulator. Conversions are done per block, while the block is in
    /// the core's cache and other blocks may be in transit.
    fn widen(&mut self, block: usize) {
        let Format { accumulator, held_size_bytes, wire_size_bytes, .. } = self.bound.format;
        let Some(accumulator) = accumulator else { return };
        for elements in self.block_by_chunks(block) {
            let narrow = &self.narrow[scaled(elements.clone(), wire_size_bytes)];
            (accumulator.codec.decode)(&mut self.held[scaled(elements, held_size_bytes)], narrow);
        }
    }

    /// Divides the sums of a block for a mean, and rounds them into the user's buffer.
    fn finish(&mut self, block: usize) {
        let Bound { call, format: Format { accumulator, held_size_bytes, .. }, ref result, ranks, .. } =
            *self.bound;
        let dtype = accumulator.map_or(call.dtype, |_| DType::F32);
        for elements in self.block_by_chunks(block) {
            // A rank that sent its sum already holds it rounded, but others may not. So all ranks divide the rounded sum.
            self.round(&elements);
            if call.op == Some(ReduceOp::Mean) {
                let results = scaled(overlap(&elements, result), held_size_bytes);
                kernels::divide(dtype, &mut self.held[results], ranks);
                self.round(&elements);
            }
        }
    }

    /// Rounds accumulated elements, both in the user's buffer and in the accumulator.
    fn round(&mut self, elements: &Range<usize>) {
        let Format { accumulator, held_size_bytes, wire_size_bytes, .. } = self.bound.format;
        let Some(accumulator) = accumulator else { return };
        let narrow = &mut self.narrow[scaled(elements.clone(), wire_size_bytes)];
        (accumulator.round)(&mut self.held[scaled(elements.clone(), held_size_bytes)], narrow);
    }

    /// Returns the elements of a block, which has a part of each chunk.
    fn block_by_chunks(&self, block: usize) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let bound = self.bound;
        let chunk_count = bound.partition.chunk_count();
        // A block of the whole array needs no division.
        let (ranges, size) = if bound.blocks == 1 { (1, chunk_count) } else { (chunk_count, 1) };
        let round = self.round;
        (0..ranges).map(move |range| {
            let all = bound.partition.elements(Chunks::new(range * size, (range + 1) * size));
            bound.elements_of_blocks(&all, block..block + 1, round)
        })
    }
}

/// Returns the intersection of two ranges; empty if they are disjoint.
fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}
