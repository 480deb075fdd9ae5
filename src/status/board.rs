//! The status board: shared memory of the ranks of a node, in which each publishes its state and its calls.
//!
//! It exists even if messages do not use shared memory, so that a rank that waits for a message can read the activity of the
//! sender. A rank that is alone on its node, or cannot share memory, has a private board.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use unisono_collectives::Rank;

use super::layout::{Layout, Row, hash};
use super::ring::{Ring, now_us, seconds_between};
use crate::codes::Codes;
use crate::error::{Error, Result};
use crate::memory::Pages;
use crate::observe::Observer;
use crate::record::{Doing, Record, Stage, State};
use crate::system;
use crate::system::now_ns;

mod endings;
mod guard;
mod recording;
mod survivors;
mod waits;

pub(crate) use endings::{FirstFailure, PROCESS_ENDED, SHRINKING};
pub(crate) use guard::Guard;
pub(crate) use recording::Recording;
pub(crate) use survivors::Gone;

/// The precision of [`StatusBoard::about_now`].
const TICK_US: u64 = 1000;

/// One rank's handle to a status board. Clones belong to the same rank.
#[derive(Debug, Clone)]
pub(crate) struct StatusBoard {
    layout: Arc<Layout>,
    members: Arc<[Rank]>,
    position: usize,
    flight_dir: Arc<OnceLock<PathBuf>>,
    /// The world of which these ranks are a group.
    parent: Arc<OnceLock<Parent>>,
    /// The guard of this rank, for as long as its communicator holds it.
    guard: Arc<OnceLock<Weak<dyn Guard>>>,
    observer: Arc<OnceLock<Arc<Observer>>>,
}

/// The status board of a group's world.
#[derive(Debug)]
struct Parent {
    status: StatusBoard,
    /// The world's number of each rank of the group.
    ranks: Box<[Rank]>,
}

impl StatusBoard {
    pub(crate) fn size_bytes(ranks: usize, members: usize) -> usize {
        Layout::size_bytes(ranks, members)
    }

    pub(crate) fn of_threads(ranks: usize) -> Result<Vec<Self>> {
        Self::of_members(ranks, (0..ranks).collect())
    }

    /// Returns a private status board, in a world of `ranks` ranks.
    pub(crate) fn alone(rank: Rank, ranks: usize) -> Result<Self> {
        Ok(Self::of_members(ranks, vec![rank])?.remove(0))
    }

    #[cfg(test)]
    pub(crate) fn of_one() -> Self {
        Self::of_threads(1).expect("there is memory").remove(0)
    }

    fn of_members(ranks: usize, members: Vec<Rank>) -> Result<Vec<Self>> {
        let size_bytes = Self::size_bytes(ranks, members.len());
        let memory = |error: rustix::io::Errno| Error::Memory { size_bytes, cause: error.into() };
        let pages = Pages::untouched(size_bytes).map_err(memory)?;
        let layout =
            Layout::new(pages, ranks, members.len()).expect("the memory has the size that the layout needs");
        let (layout, members) = (Arc::new(layout), members.into());
        let first = Self::view(layout, members, 0);
        let view = |position| {
            let (parent, guard, observer) = Default::default();
            let status = Self { position, parent, guard, observer, ..first.clone() };
            status.enter().map_err(memory)?;
            Ok(status)
        };
        (0..first.members.len()).map(view).collect()
    }

    /// Returns the status board on memory that all `members` have mapped, and that was zero before the first of them used it; `None` if
    /// the memory is not available.
    pub(crate) fn shared(pages: Pages, ranks: usize, members: &[Rank], position: usize) -> Option<Self> {
        let layout = Layout::new(pages, ranks, members.len())?;
        let status = Self::view(Arc::new(layout), members.into(), position);
        status.enter().ok().map(|()| status)
    }

    fn view(layout: Arc<Layout>, members: Arc<[Rank]>, position: usize) -> Self {
        let (flight_dir, parent, guard, observer) = Default::default();
        Self { layout, members, position, flight_dir, parent, guard, observer }
    }

    fn enter(&self) -> rustix::io::Result<()> {
        self.layout.touch(self.position)?;
        let row = self.own();
        row.process_id.store(std::process::id(), Ordering::Relaxed);
        row.since.store(self.tick(), Ordering::Release);
        Ok(())
    }

    /// Sets, once, the status board and the ranks of the world of which these ranks are a group. A failure there also fails the
    /// group, and a quiet section there applies here.
    pub(crate) fn set_parent(&self, status: Self, ranks: Box<[Rank]>) {
        let _ = self.parent.set(Parent { status, ranks });
    }

    /// Returns the ranks of the world that share this status board, by position.
    pub(crate) fn members(&self) -> &[Rank] {
        &self.members
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Returns whether both are of the same rank of the same communicator.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.parent, &other.parent)
    }

    pub(crate) fn ranks(&self) -> usize {
        self.layout.ranks
    }

    pub(crate) fn set_flight_dir(&self, folder: PathBuf) {
        let _ = self.flight_dir.set(folder);
    }

    pub(crate) fn flight_dir(&self) -> PathBuf {
        self.flight_dir.get().cloned().unwrap_or_else(|| std::env::temp_dir().join("unisono-flight"))
    }

    pub(crate) fn rank(&self) -> Rank {
        self.members[self.position]
    }

    /// Returns the position of a rank of the world among the members, if it is one.
    pub(crate) fn position_of(&self, rank: Rank) -> Option<usize> {
        self.members.iter().position(|&member| member == rank)
    }

    /// Records that this rank enters a quiet section: also in the world of a group, whose other ranks may wait for it.
    pub(crate) fn begin_quiet(&self, label: &str) {
        if let Some(parent) = self.parent.get() {
            parent.status.begin_quiet(label);
        }
        let (row, hash) = (self.own(), self.intern(label));
        // First up and last down: if this process is killed in between, the count still includes the depth of the row.
        self.layout.head().quiet.fetch_add(1, Ordering::AcqRel);
        if row.quiet_depth.fetch_add(1, Ordering::Relaxed) == 0 {
            row.quiet_label.store(hash, Ordering::Relaxed);
            row.since.store(self.tick(), Ordering::Relaxed);
        }
    }

    /// Records that this rank leaves its innermost quiet section.
    pub(crate) fn end_quiet(&self) {
        let row = self.own();
        if row.quiet_depth.fetch_sub(1, Ordering::Relaxed) == 1 {
            row.since.store(self.tick(), Ordering::Relaxed);
        }
        self.layout.head().quiet.fetch_sub(1, Ordering::AcqRel);
        if let Some(parent) = self.parent.get() {
            parent.status.end_quiet();
        }
    }

    /// Records whether a rank that does not share this status board is in a quiet section.
    pub(crate) fn set_quiet_elsewhere(&self, is_quiet: bool) {
        self.layout.head().quiet_elsewhere.store(is_quiet, Ordering::Release);
    }

    /// Returns whether a rank of the world is known to be in a quiet section.
    pub(crate) fn is_quiet(&self) -> bool {
        let head = self.layout.head();
        let of_world = || self.parent.get().is_some_and(|parent| parent.status.is_quiet());
        head.quiet.load(Ordering::Acquire) > 0 || head.quiet_elsewhere.load(Ordering::Acquire) || of_world()
    }

    /// Reads the clock, in microseconds, for all users of [`StatusBoard::about_now`].
    pub(crate) fn tick(&self) -> u64 {
        self.tick_at(now_ns())
    }

    /// Like [`StatusBoard::tick`], with a given time of the clock, in nanoseconds.
    fn tick_at(&self, now_ns: u64) -> u64 {
        let (now, tick) = (now_ns / 1000, &self.layout.head().tick);
        // The line is in the caches of all ranks, and should stay there.
        if now > tick.load(Ordering::Relaxed) + TICK_US {
            tick.store(now, Ordering::Relaxed);
        }
        now
    }

    /// Returns the time when a rank of this status board last read the clock, in a long call, a wait, or its watchdog's thread. It
    /// costs a nanosecond.
    #[inline]
    pub(crate) fn about_now(&self) -> u64 {
        self.layout.head().tick.load(Ordering::Relaxed)
    }

    /// Returns the activity of the rank at a position.
    pub(crate) fn doing(&self, position: usize) -> Doing {
        let (row, rank, now) = (self.layout.row(position), self.members[position], now_us());
        let last = row.ring.last();
        let is_quiet = row.quiet_depth.load(Ordering::Relaxed) > 0;
        let is_inside = last.as_ref().is_some_and(|last| last.progress.stage() == Stage::Running);
        let changed = row.since.load(Ordering::Acquire);
        let (state, since) = match &last {
            _ if self.has_left(rank) => (State::Left, changed),
            Some(call) if is_inside => (State::Inside, call.began),
            _ if is_quiet => (State::Quiet, changed),
            Some(call) => (State::Outside, call.ended.max(changed)),
            None => (State::NotYet, changed),
        };
        let continues = row.in_flight.load(Ordering::Acquire) || row.uses_threads.load(Ordering::Relaxed);
        let quiet = is_quiet.then(|| row.label(row.quiet_label.load(Ordering::Relaxed))).flatten();
        Doing {
            rank,
            host: system::host(),
            process_id: row.process_id.load(Ordering::Relaxed),
            state,
            since_s: seconds_between(since, now),
            quiet,
            continues,
            group: row.in_group.read(now),
            last: last.map(|last| last.record(now, |hash| self.label_of(row, hash))),
        }
    }

    pub(crate) fn process_id(&self, rank: Rank) -> u32 {
        let position = self.position_of(rank).expect("a rank that shares this status board");
        self.layout.row(position).process_id.load(Ordering::Relaxed)
    }

    /// Returns the call of a rank of the world with this sequence number, if known here: its count, codes and label.
    pub(crate) fn called(&self, rank: Rank, sequence: u64) -> Option<(u64, Codes, u64)> {
        let noted = self.layout.row(self.position_of(rank)?).ring.of_sequence(sequence)?;
        Some((noted.count, Codes::of_bits(noted.codes), noted.label))
    }

    /// Like [`called`](Self::called), for the call in which the program of a rank is blocked: neither one that has ended, nor one in flight.
    pub(crate) fn blocking_call(&self, rank: Rank, sequence: u64) -> Option<(u64, Codes, u64)> {
        let row = self.layout.row(self.position_of(rank)?);
        let is_running =
            || row.ring.of_sequence(sequence).is_some_and(|noted| noted.progress.stage() == Stage::Running);
        // In this order: a call that is running before and after was running when the flag was read.
        let is_blocking = is_running() && !row.in_flight.load(Ordering::Acquire) && is_running();
        if is_blocking { self.called(rank, sequence) } else { None }
    }

    /// Sets whether the calls of this rank run on its communication thread.
    pub(crate) fn set_in_flight(&self, in_flight: bool) {
        self.own().in_flight.store(in_flight, Ordering::Release);
    }

    /// Records the start of a non-blocking message of this rank.
    pub(crate) fn message_begins(&self) {
        self.own().messages.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn message_ends(&self) {
        self.own().messages.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether the rank at a position has non-blocking messages in flight.
    pub(crate) fn has_messages(&self, position: usize) -> bool {
        self.layout.row(position).messages.load(Ordering::Acquire) > 0
    }

    /// Returns the latest calls of the rank at a position, oldest first.
    pub(crate) fn records(&self, position: usize) -> Vec<Record> {
        let (row, now) = (self.layout.row(position), now_us());
        row.ring.all().iter().map(|noted| noted.record(now, |hash| self.label_of(row, hash))).collect()
    }

    /// Returns the name of a label, if a rank of this status board has used it recently.
    pub(crate) fn label(&self, hash: u64) -> Option<String> {
        self.label_of(self.own(), hash)
    }

    /// Returns the name of a label. It checks this row first, whose rank most likely used it.
    fn label_of(&self, row: &Row, hash: u64) -> Option<String> {
        let others = || (0..self.members.len()).find_map(|position| self.layout.row(position).label(hash));
        row.label(hash).or_else(others)
    }

    /// Returns the hash of a label for messages, and stores its name on this status board.
    pub(crate) fn intern(&self, label: &str) -> u64 {
        let hash = hash(label);
        self.own().name(hash, label);
        hash
    }

    #[inline]
    pub(crate) fn at_step(&self, phase: usize, step: usize) {
        self.ring().at_step(phase, step);
    }

    /// Returns the vendor calls of the rank at a position.
    #[cfg(feature = "nccl")]
    pub(crate) fn lockstep(&self, position: usize) -> &super::lockstep::Lockstep {
        &self.layout.row(position).lockstep
    }

    /// Returns the first rank of this status board that has announced fewer vendor calls than this one.
    #[cfg(feature = "nccl")]
    pub(crate) fn first_behind(&self) -> Option<Rank> {
        let announced = |position| self.lockstep(position).announced();
        let own = announced(self.position);
        (0..self.members.len()).find(|&other| announced(other) < own).map(|other| self.members[other])
    }

    /// Returns the time for which this rank has waited for others so far, without the start of each wait.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_micros(self.own().waited.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn ring(&self) -> &Ring {
        &self.own().ring
    }

    #[inline]
    fn own(&self) -> &Row {
        self.layout.row(self.position)
    }
}

#[cfg(test)]
mod tests;
