//! The sums of all communicators of a rank.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use unisono_collectives::Rank;

use super::Observer;
use super::counters::BOUNDS;
use crate::error::ErrorCode;
use crate::record::POINT_TO_POINT;

/// The sums of one operation by one algorithm.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    pub(super) calls: u64,
    pub(super) bytes: u64,
    pub(super) bus_bytes: f64,
    pub(super) seconds_ns: u64,
    pub(super) buckets: [u64; BOUNDS as usize + 1],
}

/// The sums of a rank.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    /// The number of ranks of its latest world.
    pub(super) world_size: usize,
    /// By the names of operation and algorithm.
    pub(super) calls: BTreeMap<(&'static str, &'static str), Sums>,
    pub(super) waits_ns: BTreeMap<Rank, u64>,
    pub(super) stragglers: BTreeMap<Rank, u64>,
    pub(super) failures: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Adds the counters of a communicator.
    pub(super) fn add(&mut self, observer: &Observer) {
        let Some(counters) = &observer.counters else { return };
        if observer.of_world.is_none() {
            self.world_size = counters.ranks;
        }
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (operation, algorithm, factor, cell) in counters.cells() {
            let sums = self.calls.entry((operation, algorithm)).or_default();
            let bytes = of(&cell.bytes);
            sums.calls += of(&cell.calls);
            sums.bytes += bytes;
            sums.bus_bytes += bytes as f64 * factor;
            sums.seconds_ns += of(&cell.seconds_ns);
            sums.buckets.iter_mut().zip(&cell.buckets).for_each(|(sum, bucket)| *sum += of(bucket));
        }
        for (operation, [calls, bytes]) in ["send", "receive"].into_iter().zip(&counters.messages) {
            if of(calls) > 0 {
                let sums = self.calls.entry((operation, POINT_TO_POINT)).or_default();
                sums.calls += of(calls);
                sums.bytes += of(bytes);
                sums.bus_bytes += of(bytes) as f64;
            }
        }
        let by_rank = |sums: &mut BTreeMap<Rank, u64>, counters: &[AtomicU64]| {
            let counted = counters.iter().enumerate().filter(|(_, counter)| of(counter) > 0);
            counted
                .for_each(|(rank, counter)| *sums.entry(observer.in_world(rank)).or_default() += of(counter));
        };
        by_rank(&mut self.waits_ns, &counters.waits_ns);
        by_rank(&mut self.stragglers, &counters.stragglers);
        for (code, counter) in ErrorCode::ALL.into_iter().zip(&counters.failures) {
            if of(counter) > 0 {
                *self.failures.entry(code.name()).or_default() += of(counter);
            }
        }
    }
}
