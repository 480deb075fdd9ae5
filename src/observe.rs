//! Metrics and traces of calls, for Prometheus (`UNISONO_METRICS`) and Perfetto (`UNISONO_TRACE`).
//!
//! Each communicator has an [`Observer`], to which its flight recorder reports every call that ends. Without these variables there
//! is no observer, and a call tests one pointer. The [`hub`] of the process collects the counters and events of all observers, and
//! exports them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use unisono_collectives::Rank;

use crate::codes::Codes;
use crate::config::Config;
use crate::error::{ErrorCode, Result};

mod counters;
mod hub;
mod serve;
mod spans;
mod timeline;
mod totals;

use counters::Counters;
pub use hub::is_on;
pub(crate) use hub::{flush, flush_briefly, next_world};
use hub::{is_observed, name_of_world};
pub use spans::{Span, record, span};
use timeline::Timeline;

/// A call that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) sequence: u64,
    pub(crate) codes: Codes,
    pub(crate) size_bytes: usize,
    /// Nanoseconds of the system clock; `None` if the clock was not read.
    pub(crate) times_ns: Option<(u64, u64)>,
    /// True if the clock was read only because of [`Observer::times_next`].
    pub(crate) is_sample: bool,
}

/// Counts and records the calls of one communicator.
#[derive(Debug)]
pub(crate) struct Observer {
    /// The rank in the world.
    rank: Rank,
    /// The name of the communicator, identical on all its ranks.
    name: Arc<str>,
    /// The world's number of each rank, in a group.
    of_world: Option<Box<[Rank]>>,
    counters: Option<Counters>,
    timeline: Option<Arc<Timeline>>,
}

impl Observer {
    /// Returns the observer of a rank of a new world, if the settings enable metrics or traces. `number` is the highest
    /// [number](next_world) that a process has for the world, and `local_rank` the rank of this process in its node.
    pub(crate) fn of_world(
        config: &Config,
        number: u64,
        (rank, ranks): (Rank, usize),
        local_rank: Rank,
    ) -> Result<Option<Arc<Self>>> {
        if !is_observed(config) {
            return Ok(None);
        }
        hub::start(config, local_rank)?;
        let name = name_of_world(number);
        let counters = config.metrics.is_some().then(|| Counters::new(ranks));
        let timeline = config.trace.is_some().then(|| hub::timeline(rank));
        Ok(Some(hub::keep(Self { rank, name, of_world: None, counters, timeline })))
    }

    /// Returns the observer of a group of ranks of this communicator.
    pub(crate) fn of_group(&self, name: &str, ranks: &[Rank]) -> Arc<Self> {
        let of_world = ranks.iter().map(|&rank| self.in_world(rank)).collect();
        hub::keep(Self {
            rank: self.rank,
            name: format!("{}/{name}", self.name).into(),
            of_world: Some(of_world),
            counters: self.counters.as_ref().map(|_| Counters::new(ranks.len())),
            timeline: self.timeline.clone(),
        })
    }

    /// Returns the number in the world of a rank of this communicator.
    fn in_world(&self, rank: Rank) -> Rank {
        self.of_world.as_ref().map_or(rank, |ranks| ranks[rank])
    }

    pub(crate) fn is_of_world(&self) -> bool {
        self.of_world.is_none()
    }

    /// Returns whether a short next call must read the clock at its start and end.
    #[inline]
    pub(crate) fn times_next(&self, codes: Codes) -> bool {
        self.timeline.is_some() || self.counters.as_ref().is_some_and(|counters| counters.times_next(codes))
    }

    /// Counts and records a call without an error. `label` returns its label.
    pub(crate) fn ended(&self, ended: &Ended, label: impl FnOnce() -> Option<String>) {
        let Ended { codes, size_bytes, times_ns, is_sample, .. } = *ended;
        if let Some(counters) = &self.counters {
            let duration = times_ns.map(|(began, ended)| ended.saturating_sub(began));
            counters.count(codes, size_bytes, duration, is_sample);
        }
        if let (Some(timeline), Some(times_ns)) = (&self.timeline, times_ns) {
            timeline.call(&self.name, ended, times_ns, label());
        }
    }

    pub(crate) fn message(&self, is_sent: bool, size_bytes: usize) {
        if let Some(counters) = &self.counters {
            let [calls, bytes] = &counters.messages[usize::from(!is_sent)];
            calls.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(size_bytes as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn waited(&self, other: Rank, time: Duration) {
        if let Some(counters) = &self.counters {
            counters.waits_ns[other].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Counts a straggler that a comparison of all ranks has found.
    pub(crate) fn straggler(&self, rank: Rank) {
        if let Some(counters) = &self.counters {
            counters.stragglers[rank].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn failed(&self, code: ErrorCode) {
        let place = ErrorCode::ALL.iter().position(|&known| known == code);
        if let (Some(counters), Some(place)) = (&self.counters, place) {
            counters.failures[place].fetch_add(1, Ordering::Relaxed);
        }
    }
}
