//! The counters of one communicator.

use std::sync::atomic::{AtomicU64, Ordering};

use unisono_collectives::Operation;

use crate::codes::Codes;
use crate::error::ErrorCode;
use crate::method::Method;

/// One of this many short calls of a kind is timed, since reading the clock twice takes longer than all other work of a counter. It
/// is prime, since programs repeat sequences of calls.
const SAMPLE: u64 = 13;
/// The number of upper bounds of the histogram: 1 µs, 4 µs, 16 µs and so on. One more bucket has no bound.
pub(super) const BOUNDS: u32 = 13;
/// Barriers follow the operations.
const OPERATIONS: usize = Operation::all(0).len() + 1;

pub(super) fn bound_us(bucket: u32) -> u64 {
    1 << (2 * bucket)
}

fn bucket(ns: u64) -> usize {
    let us = ns.div_ceil(1000).max(1);
    (u64::BITS - (us - 1).leading_zeros()).div_ceil(2).min(BOUNDS) as usize
}

/// The counters of one operation by one algorithm. Only the thread that runs the communicator's calls writes.
#[derive(Debug, Default)]
pub(super) struct Cell {
    pub(super) calls: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// The calls that no sample represents yet.
    untimed: AtomicU64,
    pub(super) seconds_ns: AtomicU64,
    pub(super) buckets: [AtomicU64; BOUNDS as usize + 1],
}

/// Adds to a counter that no other thread writes at this time.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

#[derive(Debug)]
pub(super) struct Counters {
    pub(super) ranks: usize,
    cells: Box<[Cell]>,
    /// Calls and bytes of messages: sent and received.
    pub(super) messages: [[AtomicU64; 2]; 2],
    /// Nanoseconds of waits, by the awaited rank.
    pub(super) waits_ns: Box<[AtomicU64]>,
    pub(super) stragglers: Box<[AtomicU64]>,
    /// In the order of [`ErrorCode::ALL`].
    pub(super) failures: [AtomicU64; ErrorCode::ALL.len()],
}

impl Counters {
    pub(super) fn new(ranks: usize) -> Self {
        let cells = (0..OPERATIONS * Method::ALL.len()).map(|_| Cell::default()).collect();
        let by_rank = || (0..ranks).map(|_| AtomicU64::new(0)).collect();
        let (messages, failures) = Default::default();
        Self { ranks, cells, messages, waits_ns: by_rank(), stragglers: by_rank(), failures }
    }

    fn cell(&self, codes: Codes) -> Option<&Cell> {
        let (operation, method) = codes.kind();
        let methods = Method::ALL.len();
        (method < methods).then(|| self.cells.get(operation * methods + method)).flatten()
    }

    #[inline]
    pub(super) fn times_next(&self, codes: Codes) -> bool {
        self.cell(codes).is_some_and(|cell| {
            let untimed = cell.untimed.load(Ordering::Relaxed);
            untimed + 1 >= SAMPLE || cell.calls.load(Ordering::Relaxed) == 0
        })
    }

    /// Counts a call that took this many nanoseconds, if it was timed. A sample represents all untimed calls of its kind since the
    /// last sample. Any other timed call represents only itself, since all calls of that size, or with such a wait, are timed.
    #[inline]
    pub(super) fn count(&self, codes: Codes, size_bytes: usize, duration_ns: Option<u64>, is_sample: bool) {
        let Some(cell) = self.cell(codes) else { return };
        add(&cell.calls, 1);
        add(&cell.bytes, size_bytes as u64);
        let Some(ns) = duration_ns else { return add(&cell.untimed, 1) };
        let mut weight = 1;
        if is_sample {
            weight += cell.untimed.load(Ordering::Relaxed);
            cell.untimed.store(0, Ordering::Relaxed);
        }
        add(&cell.seconds_ns, ns * weight);
        add(&cell.buckets[bucket(ns)], weight);
    }

    /// Returns the counters of each kind of call that was made: the names of its operation and algorithm, the bus factor, and the cell.
    pub(super) fn cells(&self) -> impl Iterator<Item = (&'static str, &'static str, f64, &Cell)> {
        let methods = Method::ALL.len();
        let made = self.cells.iter().enumerate().filter(|(_, cell)| cell.calls.load(Ordering::Relaxed) > 0);
        made.map(move |(place, cell)| {
            let (operation, method) = (Operation::all(0).get(place / methods).copied(), place % methods);
            let name = operation.map_or(crate::record::BARRIER_NAME, Operation::name);
            let factor = operation.map_or(0.0, |operation| operation.bus_factor(self.ranks));
            (name, Method::ALL[method].name(), factor, cell)
        })
    }
}

#[cfg(test)]
mod tests {
    use unisono_collectives::Algorithm;

    use super::*;
    use crate::call::Call;
    use crate::dtype::DType;
    use crate::kernels::ReduceOp;

    #[test]
    fn duration_is_within_the_bounds_of_its_bucket() {
        for ns in [0, 1, 999, 1000, 1001, 4000, 4001, 16_000, 16_001, 1 << 30, 16_777_216_000] {
            let found = bucket(ns) as u32;
            let us = ns.div_ceil(1000);
            assert!(us <= bound_us(found), "{ns} is in bucket {found}");
            assert!(found == 0 || us > bound_us(found - 1), "{ns} is in bucket {found}");
        }
        assert_eq!(bucket(16_777_216_001), BOUNDS as usize);
    }

    #[test]
    fn samples_represent_untimed_calls() {
        let counters = Counters::new(2);
        let call = Call::all_reduce(DType::F32, ReduceOp::Sum, 2);
        let codes = Codes::new(&call, Method::Algorithm(Algorithm::Ring));
        let mut timed = 0;
        for _ in 0..13 * 100 + 1 {
            let is_sample = counters.times_next(codes);
            timed += u64::from(is_sample);
            counters.count(codes, 8, is_sample.then_some(500), is_sample);
        }
        counters.count(codes, 8, Some(5_000_000), false);
        let cells: Vec<_> = counters.cells().collect();
        let [("all-reduce", "ring", factor, cell)] = cells[..] else { panic!("{cells:?}") };
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((factor, of(&cell.calls), of(&cell.bytes)), (1.0, 1302, 8 * 1302));
        assert_eq!((timed, of(&cell.seconds_ns)), (101, 1301 * 500 + 5_000_000));
        assert_eq!((of(&cell.buckets[0]), of(&cell.buckets[bucket(5_000_000)])), (1301, 1));
    }
}
