//! Short all-reduces in memory that all ranks share, without messages. Every rank stores its values in its own slot, and reads the
//! slots of all ranks.
//!
//! A slot starts with the number of the call, followed by the values. A rank writes the number last, so a reader of the number also
//! reads the values. Calls use two sets of slots alternately. A rank that starts call n + 2 has completed call n + 1, which the
//! others started only after they had read the slots of call n.

use std::sync::atomic::Ordering;

use unisono_collectives::{Operation, Rank};

use super::{codes, describe};
use crate::call::Call;
use crate::collective::Options;
use crate::communicator::Communicator;
use crate::error::Result;
use crate::kernels::{self, Kernel, ReduceOp};
use crate::memory::SharedCounters;

const WORD: usize = size_of::<u64>();
/// The most bytes of values in a slot. With the number they fit one cache line. Longer values would take longer than in a message
/// (512 bytes on two ranks, AMD EPYC: 1.0 us, against 0.35 us in a message).
const MOST_BYTES: usize = 64 - WORD;
/// The largest number of ranks, since every rank reads all slots.
const MOST_RANKS: usize = 8;
/// The words of a pair of cache lines, which processors load together.
const PAIR: usize = 128 / WORD;
/// The number of polls of a slot by a rank with its own core before it waits as for any other event.
const POLLS: u32 = 1000;

#[derive(Debug)]
pub(super) struct Slots {
    memory: SharedCounters,
    call: Call,
    text: String,
    kernel: Kernel,
    rank: Rank,
    ranks: usize,
    /// The number of words of a slot.
    stride: usize,
    /// The number of the latest call.
    number: u64,
    polls: u32,
    sum: Vec<u64>,
    values: Vec<u64>,
}

impl Slots {
    /// Returns whether a call is an all-reduce by a kernel of the library whose values fit slots of this number of ranks.
    pub(super) fn fit(call: &Call, ranks: usize) -> bool {
        let has_kernel = !matches!(call.op, Some(ReduceOp::Custom(_)));
        let is_short = call.size_bytes() <= MOST_BYTES && (2..=MOST_RANKS).contains(&ranks);
        call.operation == Operation::AllReduce && has_kernel && is_short
    }

    /// Returns the slots for an all-reduce. All ranks, which share memory, call it.
    pub(super) fn new(comm: &mut Communicator, call: &Call) -> Result<Self> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let words = call.size_bytes().div_ceil(WORD);
        let stride = (1 + words).next_multiple_of(PAIR);
        let op = call.op.expect("an all-reduce reduces");
        Ok(Self {
            memory: comm.alloc_counters(2 * ranks * stride)?,
            call: *call,
            text: format!("planned {}", describe(&codes(call), call.count as u64)),
            kernel: kernels::kernel(call.dtype, op),
            rank,
            ranks,
            stride,
            number: 0,
            polls: if comm.is_oversubscribed() { 1 } else { POLLS },
            sum: vec![0; words],
            values: vec![0; words],
        })
    }

    /// Returns the first word of a rank's slot in the current call.
    fn slot(&self, rank: Rank) -> usize {
        ((self.number % 2) as usize * self.ranks + rank) * self.stride
    }

    /// Starts a call with these values of this rank.
    #[inline]
    pub(super) fn publish(&mut self, values: &[u8]) {
        self.number += 1;
        let slot = self.slot(self.rank);
        let (whole, rest) = values.as_chunks::<WORD>();
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(&last);
        for (place, word) in whole.iter().chain(last).enumerate() {
            self.memory.get(slot + 1 + place).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        self.memory.get(slot).store(self.number, Ordering::Release);
    }

    /// Reduces the values of all ranks, once all have started the call.
    #[inline]
    pub(super) fn reduce(
        &mut self,
        comm: &mut Communicator,
        options: &Options,
        result: &mut [u8],
    ) -> Result<()> {
        for rank in 0..self.ranks {
            let slot = self.slot(rank);
            let number = self.memory.get(slot);
            let is_there = || number.load(Ordering::Acquire) >= self.number;
            if !(0..self.polls).any(|_| is_there()) {
                let (place, call) = ((number, self.number), Some(&*self.text));
                comm.wait_for_counter("planned all-reduce", rank, options, place, call)?;
            }
            let values = if rank == 0 { &mut self.sum } else { &mut self.values };
            for (place, word) in values.iter_mut().enumerate() {
                *word = self.memory.get(slot + 1 + place).load(Ordering::Relaxed);
            }
            if rank > 0 {
                let size_bytes = result.len();
                let sum = &mut bytemuck::cast_slice_mut(&mut self.sum)[..size_bytes];
                (self.kernel)(sum, &bytemuck::cast_slice(&self.values)[..size_bytes]);
            }
        }
        result.copy_from_slice(&bytemuck::cast_slice(&self.sum)[..result.len()]);
        if self.call.op == Some(ReduceOp::Mean) {
            kernels::divide(self.call.dtype, result, self.ranks);
        }
        Ok(())
    }
}
