//! Sizes around the library's thresholds.

use half::bf16;
use unisono::{Communicator, ReduceOp};
use unisono_testing::suite::is_deep;

use super::memory::Memory;
use super::{Exact, all_reduce, choices, other_operations};

/// The longest payload in a slot; a staged piece, and all pieces; the size from which the kernel copies messages and (for each
/// rank) whole arrays, which is also a block; and several unequal blocks.
const THRESHOLDS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 512 << 10, (1 << 20) + (300 << 10)];

/// Tests all-reduces by every algorithm and other operations, whose messages or parts have these sizes, or slightly more or less.
pub fn cross(comm: &mut Communicator, memory: Memory) {
    cross_with::<f32>(comm, memory, ReduceOp::Sum);
    let share_counts = THRESHOLDS.map(|bytes| bytes / size_of::<f32>() + 1);
    let counts = share_counts.into_iter().flat_map(|count| [count, count * comm.ranks() + 1]).collect();
    other_operations::<f32>(comm, memory, counts);
    if is_deep() && memory != Memory::Registered {
        cross_with::<bf16>(comm, memory, ReduceOp::Mean);
        cross_with::<u8>(comm, memory, ReduceOp::Max);
    } else if memory == Memory::Mixed {
        cross_with::<bf16>(comm, memory, ReduceOp::Mean);
    }
}

fn cross_with<T: Exact>(comm: &mut Communicator, memory: Memory, op: ReduceOp) {
    for choice in choices(comm, T::DTYPE) {
        for bytes in THRESHOLDS {
            for chunks in [1, comm.ranks()] {
                let count = chunks * bytes / size_of::<T>();
                let is_long = bytes > 64 << 10 || !is_deep();
                let counts = if is_long { count + 1..=count + 1 } else { count - 1..=count + 1 };
                counts.for_each(|count| all_reduce::<T>(comm, memory, &choice, op, count));
            }
        }
    }
}
