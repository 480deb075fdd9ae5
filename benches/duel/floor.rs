//! The limits of the hardware: the loops that any all-reduce of two ranks needs, and nothing else.

use std::ops::Range;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::atomic::Ordering;

use unisono::mpi::topology::SimpleCommunicator;
use unisono::mpi::traits::*;

use super::shared::{APART, Shared, wait_for};

/// Two ranks and their shared memory: per rank a number on its own cache line, two slots, and an array.
#[derive(Debug)]
pub(crate) struct Floor {
    shared: Shared,
    own: usize,
    count: usize,
    met: u64,
    posted: u64,
}

/// The size of the blocks that are exchanged if ranks share only slots: two blocks and two blocks of the array fit the L2
/// cache of any current processor.
const BLOCK_BYTES: usize = 32 << 10;
/// A slot is a number, followed by the block, on the same cache line if it fits or else on the next.
const SLOT_BYTES: usize = BLOCK_BYTES + 2 * APART;
const LINE_BYTES: usize = 64;
const SLOTS_START: usize = 4096;
const ARRAYS_START: usize = (SLOTS_START + 4 * SLOT_BYTES).next_multiple_of(4096);

impl Floor {
    /// Both ranks call it.
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

    /// Returns this rank's array in shared memory.
    pub(crate) fn array(&mut self) -> &mut [f32] {
        // SAFETY: within the mapping, and aligned; the other rank accesses it only in `joint`, while this rank is in `joint`
        // too.
        unsafe { from_raw_parts_mut(self.start(self.own), self.count) }
    }

    /// Sums the arrays in shared memory in a single pass: each rank loads its half of both, adds, and stores to both.
    pub(crate) fn joint(&mut self) {
        self.wait();
        let half: Range<usize> = match self.own {
            0 => 0..self.count / 2,
            _ => self.count / 2..self.count,
        };
        // SAFETY: within the mapping, in different arrays; between two barriers each rank has exclusive access to its half
        // of both.
        let [one, other] =
            [0, 1].map(|rank| unsafe { from_raw_parts_mut(self.start(rank).add(half.start), half.len()) });
        add_both(one, other);
        self.wait();
    }

    fn slot(&self, rank: usize) -> usize {
        SLOTS_START + (2 * rank + (self.posted % 2) as usize) * SLOT_BYTES
    }

    /// Sums arrays that the other rank cannot access: exchanges them block by block, and adds the other's blocks.
    pub(crate) fn exchange(&mut self, array: &mut [f32]) {
        for block in array.chunks_mut(BLOCK_BYTES / size_of::<f32>()) {
            self.posted += 1;
            let size_bytes = size_of_val(block);
            // A small block is on the cache line of its number.
            let offset = if size_bytes + 8 <= LINE_BYTES { 8 } else { LINE_BYTES };
            let (own, other) = (self.slot(self.own), self.slot(1 - self.own));
            let into = self.shared.at(own + offset, size_bytes);
            // SAFETY: within the slot. The other rank reads it only after the number is stored, and has read the previous
            // contents, since it has posted the next block.
            unsafe { into.copy_from_nonoverlapping(block.as_ptr().cast(), size_bytes) };
            self.shared.number(own).store(self.posted, Ordering::Release);
            wait_for(self.shared.number(other), self.posted, false);
            let from = self.shared.at(other + offset, size_bytes).cast::<f32>();
            // SAFETY: within the slot, aligned; its rank writes it again only after it has seen this rank's next block.
            add(block, unsafe { from_raw_parts(from, block.len()) });
        }
    }
}

/// Defines a loop over two slices of the same length, also compiled for wider vectors.
macro_rules! vectorised {
    ($name:ident, $wide:ident, ($one:ident: $kind:ty, $other:ident: $other_kind:ty) $body:block) => {
        #[inline(never)]
        fn $name($one: $kind, $other: $other_kind) {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor supports AVX2, as was just checked.
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
