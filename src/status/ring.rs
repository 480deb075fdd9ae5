//! The flight recorder: the latest calls of a rank, in a ring buffer that only this rank writes and others may read at any time.

use crossbeam_utils::CachePadded;
use unisono_collectives::Rank;

use crate::codes::Codes;
use crate::record::{Record, Stage};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::system::now_ns;

pub(crate) const RECORDS: usize = if cfg!(loom) { 2 } else { 256 };

/// The stages of a call that has ended.
const DONE: u8 = 1;
const FAILED: u8 = 2;
/// Flags added to the stage: the clock was read at the start of the call, and during it because it had to wait.
const TIMED: u8 = 16;
const WAITED: u8 = 32;

/// A call, on one cache line. Recording must be fast, since a short call takes a quarter of a microsecond.
#[repr(C, align(64))]
pub(super) struct Slot {
    /// The number of calls up to this one; 0 while it is being written.
    number: AtomicU64,
    sequence: AtomicU64,
    count: AtomicU64,
    codes: AtomicU64,
    label: AtomicU64,
    began: AtomicU64,
    ended: AtomicU64,
    progress: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    pub(super) fn call(&self) -> (u64, Codes, u64) {
        let codes = Codes::of_bits(self.codes.load(Ordering::Relaxed));
        (self.sequence.load(Ordering::Relaxed), codes, self.label.load(Ordering::Relaxed))
    }

    /// Returns the start time of the call, in microseconds.
    pub(super) fn began(&self) -> u64 {
        self.began.load(Ordering::Relaxed)
    }

    #[cfg(any(test, feature = "nccl"))]
    pub(super) fn is_timed(&self) -> bool {
        self.progress.load(Ordering::Relaxed) as u8 & TIMED != 0
    }

    pub(super) fn has_waited(&self) -> bool {
        self.progress.load(Ordering::Relaxed) as u8 & WAITED != 0
    }

    /// Records the end of the call and its time. Returns whether the clock was read during the call.
    #[inline]
    pub(super) fn end(&self, is_done: bool, now: impl FnOnce(bool) -> u64) {
        let progress = self.progress.load(Ordering::Relaxed);
        self.ended.store(now(progress as u8 & (TIMED | WAITED) != 0), Ordering::Relaxed);
        self.progress.store(progress | u64::from(if is_done { DONE } else { FAILED }), Ordering::Release);
    }
}

/// The fields of a record that change during a call, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// [`DONE`], [`FAILED`], or neither; and flags.
    stage: u8,
    /// The phase of the plan; at most 255.
    pub(super) phase: u8,
    /// The step of the phase; at most 65535.
    pub(super) step: u16,
    /// The rank that it waited for last, plus one; 0 if it has not waited.
    pub(super) waits_for: u32,
}

impl Progress {
    fn bits(self) -> u64 {
        let Self { stage, phase, step, waits_for } = self;
        u64::from(stage) | u64::from(phase) << 8 | u64::from(step) << 16 | u64::from(waits_for) << 32
    }

    fn of_bits(bits: u64) -> Self {
        let (stage, phase, step) = (bits as u8, (bits >> 8) as u8, (bits >> 16) as u16);
        Self { stage, phase, step, waits_for: (bits >> 32) as u32 }
    }

    pub(super) fn stage(self) -> Stage {
        match self.stage & !(TIMED | WAITED) {
            DONE => Stage::Done,
            FAILED => Stage::Failed,
            _ => Stage::Running,
        }
    }
}

/// A recorded call. Times are in microseconds of the system clock, 0 if unknown; the end time is undefined while the call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) sequence: u64,
    pub(super) count: u64,
    pub(super) codes: u64,
    pub(super) label: u64,
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) progress: Progress,
}

impl Noted {
    /// Returns the public record, at a given time. `label` finds the names of labels.
    pub(super) fn record(&self, now: u64, label: impl Fn(u64) -> Option<String>) -> Record {
        let Self { sequence, count, codes, began, ended, progress, .. } = *self;
        let codes = Codes::of_bits(codes);
        let stage = progress.stage();
        Record {
            sequence,
            operation: codes.operation().to_owned(),
            dtype: codes.dtype().into_owned(),
            count,
            op: codes.op().map(str::to_owned),
            root: codes.root(),
            algorithm: codes.method().to_owned(),
            label: (self.label != 0).then(|| label(self.label)).flatten(),
            phase: usize::from(progress.phase),
            step: usize::from(progress.step),
            stage,
            waits_for: progress.waits_for.checked_sub(1).map(|rank| rank as Rank),
            began_s_ago: seconds_between(began, now),
            ended_s_ago: (stage != Stage::Running).then(|| seconds_between(ended, now)),
        }
    }
}

/// Returns the time of the system clock, which is the same for all processes of a node.
pub(super) fn now_us() -> u64 {
    now_ns() / 1000
}

/// Returns the seconds between two moments of the system clock in microseconds; 0 if the first is unknown.
pub(super) fn seconds_between(then: u64, now: u64) -> f64 {
    if then == 0 { 0.0 } else { now.saturating_sub(then) as f64 / 1e6 }
}

/// A ring buffer of calls. All zeros are an empty buffer.
#[repr(C, align(128))]
pub(super) struct Ring {
    /// The number of calls started.
    begun: CachePadded<AtomicU64>,
    slots: [Slot; RECORDS],
}

impl Ring {
    #[inline]
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// Records the start of a call and its time. Returns whether the clock was read. Only the owner of the ring writes.
    #[inline]
    pub(super) fn begin(
        &self,
        sequence: u64,
        count: u64,
        codes: u64,
        label: u64,
        (now, is_timed): (u64, bool),
    ) -> &Slot {
        let number = self.begun.load(Ordering::Relaxed) + 1;
        let slot = self.slot(number);
        // Pairs with the fence in `read`: a reader that observes any of the following writes also observes that the record is being
        // written.
        slot.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        slot.sequence.store(sequence, Ordering::Relaxed);
        slot.count.store(count, Ordering::Relaxed);
        slot.codes.store(codes, Ordering::Relaxed);
        slot.label.store(label, Ordering::Relaxed);
        slot.began.store(now, Ordering::Relaxed);
        slot.progress.store(if is_timed { u64::from(TIMED) } else { 0 }, Ordering::Relaxed);
        slot.number.store(number, Ordering::Release);
        self.begun.store(number, Ordering::Release);
        slot
    }

    #[inline]
    pub(super) fn at_step(&self, phase: usize, step: usize) {
        let (phase, step) = (phase.min(usize::from(u8::MAX)) as u8, step.min(usize::from(u16::MAX)) as u16);
        let newest = self.newest();
        let stage = newest.progress.load(Ordering::Relaxed) as u8;
        let progress = Progress { stage, phase, step, waits_for: 0 };
        newest.progress.store(progress.bits(), Ordering::Relaxed);
    }

    pub(super) fn waits_for(&self, other: Rank, now: u64) {
        let newest = self.newest();
        let progress = Progress::of_bits(newest.progress.load(Ordering::Relaxed));
        if progress.stage() != Stage::Running {
            // A wait outside calls, such as for a GPU.
            return;
        }
        if progress.stage & (TIMED | WAITED) == 0 {
            // The call started a moment ago, possibly with an older time.
            newest.began.store(now, Ordering::Relaxed);
        }
        let (stage, waits_for) = (progress.stage | WAITED, other as u32 + 1);
        newest.progress.store(Progress { stage, waits_for, ..progress }.bits(), Ordering::Relaxed);
    }

    /// Returns call `number`, if it is still kept. Calls are numbered from 1.
    pub(super) fn read(&self, number: u64) -> Option<Noted> {
        let slot = self.slot(number);
        if number == 0 || slot.number.load(Ordering::Acquire) != number {
            return None;
        }
        // `progress` first: it is written after the end time, so a recorded end has a valid end time.
        let progress = Progress::of_bits(slot.progress.load(Ordering::Acquire));
        let noted = Noted {
            sequence: slot.sequence.load(Ordering::Relaxed),
            count: slot.count.load(Ordering::Relaxed),
            codes: slot.codes.load(Ordering::Relaxed),
            label: slot.label.load(Ordering::Relaxed),
            began: slot.began.load(Ordering::Relaxed),
            ended: slot.ended.load(Ordering::Relaxed),
            progress,
        };
        fence(Ordering::Acquire);
        (slot.number.load(Ordering::Relaxed) == number).then_some(noted)
    }

    /// Returns the newest call that is kept. The writer may be a few calls ahead by then.
    pub(super) fn last(&self) -> Option<Noted> {
        // A writer can lap the ring during a read a bounded number of times.
        (0..RECORDS).find_map(|_| self.read(self.begun()))
    }

    /// Returns the call with this sequence number, if it is kept. It may be missed during a write.
    pub(super) fn of_sequence(&self, sequence: u64) -> Option<Noted> {
        // A call on a GPU may have several sequence numbers.
        let begun = self.begun();
        let mut kept = (0..RECORDS as u64).map_while(|before| self.read(begun.checked_sub(before)?));
        kept.find(|noted| noted.sequence <= sequence).filter(|noted| noted.sequence == sequence)
    }

    pub(super) fn all(&self) -> Vec<Noted> {
        let begun = self.begun();
        let first = begun.saturating_sub(RECORDS as u64) + 1;
        (first..=begun).filter_map(|number| self.read(number)).collect()
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % RECORDS as u64) as usize]
    }

    #[inline]
    pub(super) fn newest(&self) -> &Slot {
        self.slot(self.begun.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    #[cfg(loom)]
    mod orders;

    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::status::board::StatusBoard;

    #[test]
    fn progress_survives_encoding() {
        let progress = Progress { stage: FAILED, phase: 200, step: 60_000, waits_for: 7 };
        assert_eq!(Progress::of_bits(progress.bits()), progress);
    }

    #[test]
    fn latest_calls_are_kept_in_order() {
        let status = StatusBoard::of_one();
        let ring = status.ring();
        assert_eq!((ring.last(), ring.all()), (None, vec![]));
        for call in 0..1000 {
            ring.begin(call, 8, 0, 0, (50, false)).end(true, |is_timed| {
                assert!(!is_timed);
                51
            });
            let slot = ring.begin(call, 8, 0, 0, (50, false));
            ring.waits_for(3, 55);
            ring.waits_for(3, 57);
            ring.at_step(1, call as usize);
            slot.end(true, |is_timed| if is_timed { 60 } else { 0 });
        }
        let all = ring.all();
        let sequences: Vec<_> = all.iter().map(|noted| noted.sequence).collect();
        let twice = (1000 - RECORDS as u64 / 2..1000).flat_map(|call| [call, call]);
        assert_eq!(sequences, twice.collect::<Vec<_>>());
        let last = Noted {
            sequence: 999,
            count: 8,
            codes: 0,
            label: 0,
            began: 55,
            ended: 60,
            progress: Progress { stage: DONE | WAITED, phase: 1, step: 999, waits_for: 0 },
        };
        assert_eq!((all.last(), ring.last()), (Some(&last), Some(last)));
        assert_eq!(last.progress.stage(), Stage::Done);
    }

    #[test]
    fn call_is_found_by_its_sequence_number() {
        let status = StatusBoard::of_one();
        let ring = status.ring();
        (0..1000).for_each(|call| ring.begin(call, 8, 0, 0, (50, false)).end(true, |_| 51));
        assert!(ring.all().iter().all(|noted| ring.of_sequence(noted.sequence) == Some(*noted)));
        assert_eq!((ring.of_sequence(999 - RECORDS as u64), ring.of_sequence(1000)), (None, None));
    }

    #[test]
    fn timed_call_keeps_its_start_time() {
        let status = StatusBoard::of_one();
        let ring = status.ring();
        let slot = ring.begin(0, 8, 0, 0, (50, true));
        ring.waits_for(3, 90);
        let last = ring.last().unwrap();
        assert_eq!((last.began, last.progress.waits_for, last.progress.stage()), (50, 4, Stage::Running));
        slot.end(false, |is_timed| if is_timed { 95 } else { 0 });
        ring.waits_for(2, 99);
        let last = ring.last().unwrap();
        assert_eq!((last.ended, last.progress.waits_for, last.progress.stage()), (95, 4, Stage::Failed));
    }

    /// All fields of a record follow from its number, so a mixture of two records would be detected.
    #[test]
    fn no_torn_record_is_read_while_the_writer_laps_the_reader() {
        let status = StatusBoard::of_one();
        let (ring, ends) = (status.ring(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut call = 0;
                while !ends.load(Ordering::Relaxed) {
                    call += 1;
                    ring.begin(call, call * 3, call * 5, call * 7, (call * 11, false));
                }
            });
            let mut seen = 0;
            while seen < 200_000 {
                for noted in ring.all() {
                    let call = noted.sequence;
                    let rest = (noted.count, noted.codes, noted.label, noted.began);
                    assert_eq!(rest, (call * 3, call * 5, call * 7, call * 11));
                    seen += 1;
                }
                seen += usize::from(ring.last().is_some());
            }
            ends.store(true, Ordering::Relaxed);
        });
    }
}
