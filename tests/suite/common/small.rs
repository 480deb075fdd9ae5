//! Small random all-reduces, with varied sizes, types, reductions, algorithms and kinds of memory, blocking or in flight, completed
//! in random order.

use unisono::{Algorithm, Choice, Communicator, DType};

use super::memory::Memory;
use super::{Exact, assert_reduced, inputs, reductions};
use unisono_testing::random::Random;

/// Pending calls, to be waited for and compared with the expected result.
type InFlight = Box<dyn FnOnce()>;

/// Makes this many random all-reduces. The calls are common to all ranks. Each rank draws the kind of its memory, whether it
/// blocks, and delays.
///
/// # Panics
/// If a result is wrong or missing.
pub fn all_reduces(mut comm: Communicator, seed: u64, world: u64, calls: usize) {
    let mut common = Random::of(seed, world);
    let mut own = Random::of(common.clone().bits(), comm.rank() as u64);
    let mut in_flight: Vec<InFlight> = Vec::new();
    for number in 0..calls {
        if own.once_in(50) {
            own.delay();
        }
        let mut call =
            Call { comm: &mut comm, common: &mut common, own: &mut own, in_flight: &mut in_flight, number };
        match call.common.one_of(&DType::ALL) {
            DType::F32 => call.make::<f32>(),
            DType::F64 => call.make::<f64>(),
            DType::F16 => call.make::<half::f16>(),
            DType::BF16 => call.make::<half::bf16>(),
            DType::I32 => call.make::<i32>(),
            DType::I64 => call.make::<i64>(),
            DType::U8 => call.make::<u8>(),
            DType::U32 => call.make::<u32>(),
            DType::U64 => call.make::<u64>(),
        }
        while in_flight.len() > 6 || (!in_flight.is_empty() && own.once_in(4)) {
            let any = in_flight.swap_remove(own.below(in_flight.len()));
            if own.once_in(8) { drop(any) } else { any() }
        }
    }
    // The remaining calls are waited for or dropped, before the communicator is dropped or after it.
    if own.once_in(2) {
        drop(comm);
    }
    let wait = own.below(in_flight.len() + 1);
    in_flight.drain(..wait).for_each(|wait| wait());
}

struct Call<'a> {
    comm: &'a mut Communicator,
    common: &'a mut Random,
    own: &'a mut Random,
    in_flight: &'a mut Vec<InFlight>,
    number: usize,
}

impl Call<'_> {
    fn make<T: Exact>(&mut self) {
        let Self { comm, common, own, in_flight, number } = self;
        let (rank, ranks, number) = (comm.rank(), comm.ranks(), *number);
        let op = common.one_of(&reductions(T::DTYPE));
        let longest = common.one_of(&[2, 40, 40, 300, 300, 3000]);
        let count = common.below(longest);
        if common.once_in(4) {
            let algorithm = Choice::from(common.one_of(&Algorithm::ALL));
            comm.set_choice(if common.once_in(4) { Choice::Auto } else { algorithm }).unwrap();
        }
        let memory = if own.once_in(4) { own.one_of(&Memory::ALL) } else { Memory::Slices };
        let mut array = memory.array(comm, inputs::<T>(op, rank, number, count));
        let what = format!("call {number} of {count} by {}, {memory:?}, rank {rank}", comm.choice());
        if own.once_in(3) {
            let request = comm.all_reduce_async(array, op).unwrap();
            in_flight.push(Box::new(move || {
                assert_reduced(&request.wait().unwrap(), op, ranks, number, &format!("{what}, in flight"));
            }));
        } else {
            comm.all_reduce(&mut array, op).unwrap();
            assert_reduced(&array, op, ranks, number, &what);
        }
    }
}

/// The resources of a process: memory in use, in bytes, and open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub bytes: usize,
    pub files: usize,
}

impl Held {
    pub fn now() -> Self {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let resident = pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap();
        Self { bytes: resident * 4096, files: std::fs::read_dir("/proc/self/fd").unwrap().count() }
    }

    /// # Panics
    /// If the process uses more than before.
    pub fn assert_no_more_than(self, before: Self, what: &str) {
        /// Memory that an allocator may keep in addition.
        const SLACK_BYTES: usize = 24 << 20;
        assert!(self.bytes <= before.bytes + SLACK_BYTES, "{what}: memory grows from {before:?} to {self:?}");
        assert!(self.files <= before.files, "{what}: files grow from {before:?} to {self:?}");
    }
}
