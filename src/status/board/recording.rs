//! The recording of calls, for the flight recorder and the observer of a communicator.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use unisono_collectives::Rank;

use super::super::ring::Slot;
use super::StatusBoard;
use super::waits::this_thread;
use crate::codes::Codes;
use crate::observe::{Ended, Observer};
use crate::system::now_ns;

/// The size from which the cost of reading the clock is negligible.
const LONG_BYTES: usize = 16 << 10;

impl StatusBoard {
    pub(crate) fn set_observer(&self, observer: Arc<Observer>) {
        let _ = self.observer.set(observer);
    }

    #[inline]
    pub(crate) fn observer(&self) -> Option<&Arc<Observer>> {
        self.observer.get()
    }

    #[inline]
    pub(crate) fn begin(
        &self,
        sequence: u64,
        count: u64,
        codes: Codes,
        label: u64,
        size_bytes: usize,
    ) -> Recording<'_> {
        let row = self.own();
        if !row.in_flight.load(Ordering::Relaxed) {
            row.thread.store(this_thread(), Ordering::Relaxed);
        }
        let (is_long, observer) = (size_bytes >= LONG_BYTES, self.observer());
        let is_sample = !is_long && observer.is_some_and(|observer| observer.times_next(codes));
        let is_timed = is_long || is_sample;
        let began_ns = if is_timed { now_ns() } else { 0 };
        let now = if is_timed { self.tick_at(began_ns) } else { self.about_now() };
        let slot = self.ring().begin(sequence, count, codes.bits(), label, (now, is_timed));
        let observed = observer.map(|observer| Observed { observer, size_bytes, began_ns, is_sample });
        Recording { status: self, slot, observed }
    }

    /// Records the rank for which the call waits, and the time since the last check.
    pub(crate) fn waits_for(&self, other: Rank, more: Duration) {
        let row = self.own();
        row.waited.store(row.waited.load(Ordering::Relaxed) + more.as_micros() as u64, Ordering::Relaxed);
        row.ring.waits_for(other, self.tick());
        if let Some(observer) = self.observer() {
            observer.waited(other, more);
        }
    }

    /// Records the end of the latest call, whose array has this size.
    #[cfg(any(test, feature = "nccl"))]
    pub(crate) fn end(&self, is_done: bool, size_bytes: usize) {
        let slot = self.ring().newest();
        let began_ns = if slot.is_timed() { slot.began() * 1000 } else { 0 };
        let observed =
            self.observer().map(|observer| Observed { observer, size_bytes, began_ns, is_sample: false });
        Recording { status: self, slot, observed }.end(is_done);
    }
}

#[must_use]
pub(crate) struct Recording<'a> {
    status: &'a StatusBoard,
    slot: &'a Slot,
    observed: Option<Observed<'a>>,
}

/// The properties of a call that the observer needs and the flight recorder does not store.
struct Observed<'a> {
    observer: &'a Observer,
    size_bytes: usize,
    /// 0 if the clock was not read.
    began_ns: u64,
    is_sample: bool,
}

impl Recording<'_> {
    #[inline]
    pub(crate) fn end(self, is_done: bool) {
        let (status, mut ended_ns) = (self.status, 0);
        self.slot.end(is_done, |is_timed| {
            if is_timed {
                ended_ns = now_ns();
                status.tick_at(ended_ns)
            } else {
                status.about_now()
            }
        });
        if let Some(observed) = self.observed.filter(|_| is_done) {
            observed.end(status, self.slot, ended_ns);
        }
    }
}

impl Observed<'_> {
    #[inline(never)]
    fn end(self, status: &StatusBoard, slot: &Slot, ended_ns: u64) {
        let Self { observer, size_bytes, began_ns, is_sample } = self;
        let (sequence, codes, label) = slot.call();
        // Any call that had to wait was timed then.
        let has_waited = slot.has_waited();
        let began_ns = if began_ns == 0 && has_waited { slot.began() * 1000 } else { began_ns };
        let times_ns = (began_ns != 0).then_some((began_ns, ended_ns));
        let is_sample = is_sample && !has_waited;
        let ended = Ended { sequence, codes, size_bytes, times_ns, is_sample };
        observer.ended(&ended, || (label != 0).then(|| status.label(label)).flatten());
    }
}
