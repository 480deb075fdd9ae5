//! An operation that only moves elements, where all ranks reach all buffers: no messages, each rank moves its share of them.

use std::ops::Range;

use unisono_collectives::{Chunks, Operation, Rank, partition};

use super::{BLOCK_BYTES, Task};
use crate::error::Result;
use crate::transport::{Open, Shares, Transport};

/// How much is handed to one rank after the other at a time: it fits the first-level cache.
const BLOCK: usize = 8 << 10;

/// One rank's share: its own part of the array, in the buffers of all ranks.
#[derive(Debug)]
pub(super) struct Copies<'a> {
    pub(super) task: &'a Task<'a>,
}

impl Copies<'_> {
    pub(super) fn run(&self, buffer: &mut [u8], transport: &mut Transport) -> Result<()> {
        let Task { call, header, topology, deadlines, .. } = *self.task;
        let (rank, ranks) = (transport.rank(), topology.ranks());
        let blocks = (call.size_bytes() / ranks).div_ceil(BLOCK_BYTES).max(1);
        let (read, written) = match call.operation {
            Operation::AllGather => (false, true),
            Operation::Gather { root } => (false, rank == root),
            Operation::Scatter { root } => (rank == root, false),
            Operation::Broadcast { root } => (rank == root, rank != root),
            _ => (true, true),
        };
        for block in 0..blocks {
            let ranges = |rank: Rank| {
                let all = partition::elements(call.count, ranks, Chunks::one(rank));
                let part = partition::elements(all.len(), blocks, Chunks::one(block));
                call.bytes_of(all.start + part.start..all.start + part.end)
            };
            if block > 0 {
                transport.status().at_step(0, block);
            }
            let shares = Shares { ranges, read, written };
            transport
                .single_pass(&header, buffer, shares, deadlines, |open| self.work(open, rank, ranges))
                .map_err(|failure| self.task.error(failure, transport, "one pass", block))?;
        }
        Ok(())
    }

    fn work(&self, open: &mut Open<'_>, rank: Rank, ranges: impl Fn(Rank) -> Range<usize>) -> Result<()> {
        let ranks = self.task.topology.ranks();
        let others = || (0..ranks).filter(|&other| other != rank);
        let size_bytes = ranges(rank).len();
        // What goes one way only is not needed again.
        let at_a_time = if ranks == 2 { size_bytes.max(1) } else { open.block_bytes(BLOCK) };
        let mut parts =
            (0..size_bytes).step_by(at_a_time).map(|start| start..size_bytes.min(start + at_a_time));
        match self.task.call.operation {
            // The next rank first: not all at once to the same.
            Operation::AllToAll => (1..ranks)
                .map(|distance| (rank + distance) % ranks)
                .try_for_each(|other| open.swap(other, ranges(other))),
            Operation::Gather { root } if rank != root => parts.try_for_each(|part| open.give(root, part)),
            Operation::Scatter { root } if rank != root => parts.try_for_each(|part| open.take(root, part)),
            Operation::Gather { .. } | Operation::Scatter { .. } => Ok(()),
            operation => parts.try_for_each(|part| {
                let root = operation.root().unwrap_or(rank);
                if rank != root {
                    open.take(root, part.clone())?;
                }
                others().filter(|&other| other != root).try_for_each(|other| open.give(other, part.clone()))
            }),
        }
    }
}
