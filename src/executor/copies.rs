//! Operations that only move elements, where all ranks access all buffers: each rank copies its share, without messages.

use std::ops::Range;

use unisono_collectives::execution::{Move, Moves};
use unisono_collectives::{Chunks, Rank, partition};

use super::Task;
use crate::error::Result;
use crate::transport::{Open, Shares, Transport};

/// The number of bytes copied to each rank at a time; fits the L1 cache.
const BLOCK: usize = 8 << 10;

/// One rank's share: its own part of the array, in the buffers of all ranks.
#[derive(Debug)]
pub(super) struct Copies<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) moves: &'a Moves,
}

impl Copies<'_> {
    pub(super) fn run(&self, buffer: &mut [u8], transport: &mut Transport) -> Result<()> {
        let Task { call, header, topology, deadlines, .. } = *self.task;
        let (rank, ranks) = (transport.rank(), topology.ranks());
        let Moves { blocks, is_read, is_written, .. } = *self.moves;
        for block in 0..blocks {
            let ranges = |rank: Rank| {
                let all = partition::elements(call.count, ranks, Chunks::one(rank));
                let part = partition::elements(all.len(), blocks, Chunks::one(block));
                call.bytes_of(all.start + part.start..all.start + part.end)
            };
            if block > 0 {
                transport.status().at_step(0, block);
            }
            let shares = Shares { ranges, read: is_read, written: is_written };
            transport
                .single_pass(&header, buffer, shares, deadlines, |open| self.work(open, rank, ranges))
                .map_err(|failure| self.task.error(failure, transport, "one pass", block))?;
        }
        Ok(())
    }

    fn work(&self, open: &mut Open<'_>, rank: Rank, ranges: impl Fn(Rank) -> Range<usize>) -> Result<()> {
        let (size_bytes, moves) = (ranges(rank).len(), &self.moves.moves);
        // Blocks help only if the same bytes are copied to several ranks; swaps are not divided.
        let is_cut =
            self.task.topology.ranks() > 2 && !moves.iter().any(|one| matches!(one, Move::Swap { .. }));
        let at_a_time = if is_cut { open.block_bytes(BLOCK) } else { size_bytes.max(1) };
        let mut parts =
            (0..size_bytes).step_by(at_a_time).map(|start| start..size_bytes.min(start + at_a_time));
        parts.try_for_each(|part| {
            moves.iter().try_for_each(|one| match *one {
                Move::Take { from } => open.take(from, part.clone()),
                Move::Give { to } => open.give(to, part.clone()),
                Move::Swap { with } => open.swap(with, ranges(with)),
            })
        })
    }
}
