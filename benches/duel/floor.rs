//! What the physics allows: the loops that an all-reduce of two ranks cannot do without, and nothing else.

use std::ops::Range;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::atomic::Ordering;

use unisono::mpi::topology::SimpleCommunicator;
use unisono::mpi::traits::*;

use super::shared::{APART, Shared, wait_for};

/// Two ranks and their shared memory: a number for each on a line of its own, two slots for each, and an array of each.
#[derive(Debug)]
pub(crate) struct Floor {
    shared: Shared,
    own: usize,
    count: usize,
    met: u64,
    posted: u64,
}

/// How many bytes of an array are handed over at once where only slots are shared: two of them and two blocks of the array stay
/// in the second-level cache of any processor of today.
const BLOCK_BYTES: usize = 32 << 10;
/// A slot is a number, and behind it or on the next line what is handed over.
const SLOT_BYTES: usize = BLOCK_BYTES + 2 * APART;
const LINE_BYTES: usize = 64;
const SLOTS_START: usize = 4096;
const ARRAYS_START: usize = (SLOTS_START + 4 * SLOT_BYTES).next_multiple_of(4096);

impl Floor {
    /// Called by both ranks.
    pub(crate) fn new(world: &SimpleCommunicator, count: usize) -> Self {
        let array_bytes = Self::array_bytes(count);
        let shared = Shared::new(world, ARRAYS_START + 2 * array_bytes);
        Self { shared, own: world.rank() as usize, count, met: 0, posted: 0 }
    }

    fn array_bytes(count: usize) -> usize {
        (count * size_of::<f32>()).next_multiple_of(4096)
    }

    fn wait(&mut self) {
        self.met += 1;
        self.shared.number(self.own * APART).store(self.met, Ordering::Release);
        wait_for(self.shared.number((1 - self.own) * APART), self.met, false);
    }

    fn start(&self, rank: usize) -> *mut f32 {
        let array_bytes = Self::array_bytes(self.count);
        self.shared.at(ARRAYS_START + rank * array_bytes, array_bytes).cast()
    }

    /// This rank's array in shared memory.
    pub(crate) fn array(&mut self) -> &mut [f32] {
        // SAFETY: inside of the mapping; the other rank uses it in `joint` alone, while this rank is there too.
        unsafe { from_raw_parts_mut(self.start(self.own), self.count) }
    }

    /// The arrays in shared memory are added up in one pass: each rank loads its half of both, adds, and stores it to both.
    pub(crate) fn joint(&mut self) {
        self.wait();
        let half: Range<usize> = match self.own {
            0 => 0..self.count / 2,
            _ => self.count / 2..self.count,
        };
        // SAFETY: inside of the mapping, in different arrays; between two meetings each rank has its half of both to itself.
        let [one, other] =
            [0, 1].map(|rank| unsafe { from_raw_parts_mut(self.start(rank).add(half.start), half.len()) });
        add_both(one, other);
        self.wait();
    }

    fn slot(&self, rank: usize) -> usize {
        SLOTS_START + (2 * rank + (self.posted % 2) as usize) * SLOT_BYTES
    }

    /// An array that only this rank reaches: handed over block by block, and what the other hands over is added to it.
    pub(crate) fn exchange(&mut self, array: &mut [f32]) {
        for block in array.chunks_mut(BLOCK_BYTES / size_of::<f32>()) {
            self.posted += 1;
            let size_bytes = size_of_val(block);
            // What fits into a line travels in that of its number.
            let offset = if size_bytes + 8 <= LINE_BYTES { 8 } else { LINE_BYTES };
            let (own, other) = (self.slot(self.own), self.slot(1 - self.own));
            let into = self.shared.at(own + offset, size_bytes);
            // SAFETY: inside of the slot. The other rank reads it after the number is stored; it has read what was there before,
            // as it has posted the next block since.
            unsafe { into.copy_from_nonoverlapping(block.as_ptr().cast(), size_bytes) };
            self.shared.number(own).store(self.posted, Ordering::Release);
            wait_for(self.shared.number(other), self.posted, false);
            let from = self.shared.at(other + offset, size_bytes).cast::<f32>();
            // SAFETY: inside of the slot, aligned; its rank writes it again only after it has seen this rank's next block.
            add(block, unsafe { from_raw_parts(from, block.len()) });
        }
    }
}

/// A loop over two slices of the same length, compiled for wider vectors too.
macro_rules! vectorised {
    ($name:ident, $wide:ident, ($one:ident: $kind:ty, $other:ident: $other_kind:ty) $body:block) => {
        #[inline(never)]
        fn $name($one: $kind, $other: $other_kind) {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has it.
                return unsafe { $wide($one, $other) };
            }
            $body
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn $wide($one: $kind, $other: $other_kind) $body
    };
}

vectorised!(add_both, add_both_wide, (one: &mut [f32], other: &mut [f32]) {
    for (one, other) in one.iter_mut().zip(other) {
        let sum = *one + *other;
        *one = sum;
        *other = sum;
    }
});

vectorised!(add, add_wide, (one: &mut [f32], other: &[f32]) {
    for (one, other) in one.iter_mut().zip(other) {
        *one += *other;
    }
});
