//! The status board: memory that all ranks of a node have in common, in which each writes how it is and what it does.
//!
//! It is there whether or not messages go through shared memory, so that ranks that wait for a message know more of each
//! other than that it does not come. Who is alone on a node, or cannot share memory, has one of its own.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use unisono_collectives::Rank;

use super::ring::{Ring, Slot};
use super::sheet::{Row, Sheet, hash};
use super::time::{now_us, seconds_between};
use crate::codes::Codes;
use crate::error::{Error, Result};
use crate::memory::Pages;
use crate::record::{Doing, Record, Stage, State};
use crate::system;

/// From this size on, a call takes so long that a look at the clock does not matter.
const LONG_BYTES: usize = 16 << 10;
/// How exact [`StatusBoard::about_now`] need be.
const TICK_US: u64 = 1000;

/// One rank's view of a status board. Clones are of the same rank.
#[derive(Debug, Clone)]
pub(crate) struct StatusBoard {
    sheet: Arc<Sheet>,
    members: Arc<[Rank]>,
    position: usize,
    /// Where flight recorders are written to.
    flight_dir: Arc<OnceLock<PathBuf>>,
    /// The world that this status board's ranks are a group of.
    parent: Arc<OnceLock<Parent>>,
}

/// The status board of the world that a group was made of.
#[derive(Debug)]
struct Parent {
    status: StatusBoard,
    /// What the world calls each rank of the group.
    ranks: Box<[Rank]>,
}

impl StatusBoard {
    /// How much memory a status board needs that `members` of `ranks` ranks share.
    pub(crate) fn size_bytes(ranks: usize, members: usize) -> usize {
        Sheet::size_bytes(ranks, members)
    }

    /// The views of all ranks of a world of threads.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system has not that much.
    pub(crate) fn of_threads(ranks: usize) -> Result<Vec<Self>> {
        Self::of_members(ranks, (0..ranks).collect())
    }

    /// A status board of this rank's own, in a world of `ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system has not that much.
    pub(crate) fn alone(rank: Rank, ranks: usize) -> Result<Self> {
        Ok(Self::of_members(ranks, vec![rank])?.remove(0))
    }

    /// A status board for a test.
    #[cfg(test)]
    pub(crate) fn of_one() -> Self {
        Self::of_threads(1).expect("there is memory").remove(0)
    }

    fn of_members(ranks: usize, members: Vec<Rank>) -> Result<Vec<Self>> {
        let size_bytes = Self::size_bytes(ranks, members.len());
        let memory = |error: rustix::io::Errno| Error::Memory { size_bytes, cause: error.into() };
        let pages = Pages::untouched(size_bytes).map_err(memory)?;
        let sheet = Sheet::new(pages, ranks, members.len()).expect("it was asked how much it needs");
        let (sheet, members) = (Arc::new(sheet), members.into());
        let first = Self { sheet, members, position: 0, flight_dir: Arc::default(), parent: Arc::default() };
        let view = |position| {
            let status = Self { position, parent: Arc::default(), ..first.clone() };
            status.enter().map_err(memory)?;
            Ok(status)
        };
        (0..first.members.len()).map(view).collect()
    }

    /// The status board with this number, on memory that all `members` have mapped, and that was zero; `None` if it is another's, or
    /// cannot be had. The first of the members calls it first.
    pub(crate) fn shared(
        pages: Pages,
        number: u64,
        ranks: usize,
        members: &[Rank],
        position: usize,
    ) -> Option<Self> {
        let sheet = Sheet::new(pages, ranks, members.len())?;
        if position == 0 {
            sheet.head().number.store(number, Ordering::Release);
        } else if sheet.head().number.load(Ordering::Acquire) != number {
            return None;
        }
        let (sheet, members) = (Arc::new(sheet), members.into());
        let status = Self { sheet, members, position, flight_dir: Arc::default(), parent: Arc::default() };
        status.enter().ok().map(|()| status)
    }

    /// Writes this rank's row for the first time.
    fn enter(&self) -> rustix::io::Result<()> {
        self.sheet.touch(self.position)?;
        let row = self.own();
        row.process_id.store(std::process::id(), Ordering::Relaxed);
        row.since.store(self.tick(), Ordering::Release);
        Ok(())
    }

    /// Says, once, that these ranks are a group of the world that another status board is of, which calls them so: what ends one of them
    /// there ends the group, and a section there that may take long is one here.
    pub(crate) fn set_parent(&self, status: Self, ranks: Box<[Rank]>) {
        let _ = self.parent.set(Parent { status, ranks });
    }

    /// The ranks of the world that share this status board, by position.
    pub(crate) fn members(&self) -> &[Rank] {
        &self.members
    }

    /// Which of them this rank is.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// How many ranks the world has.
    pub(crate) fn ranks(&self) -> usize {
        self.sheet.ranks()
    }

    /// Sets where flight recorders are written to, once.
    pub(crate) fn set_flight_dir(&self, folder: PathBuf) {
        let _ = self.flight_dir.set(folder);
    }

    /// Where flight recorders are written to.
    pub(crate) fn flight_dir(&self) -> PathBuf {
        self.flight_dir.get().cloned().unwrap_or_else(|| std::env::temp_dir().join("unisono-flight"))
    }

    /// This rank.
    pub(crate) fn rank(&self) -> Rank {
        self.members[self.position]
    }

    /// Where a rank of the world is among the members, if it is one.
    pub(crate) fn position_of(&self, rank: Rank) -> Option<usize> {
        self.members.iter().position(|&member| member == rank)
    }

    /// Says that a rank of the world cannot go on, and why. The first cause stays; whether this was the first.
    pub(crate) fn fail(&self, by: Rank, cause: &str) -> bool {
        let head = self.sheet.head();
        let first =
            head.failed.compare_exchange(0, by as u32 + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if first {
            head.cause.set(cause);
        }
        first
    }

    /// The rank that failed first, and what it said, if one did.
    pub(crate) fn failed(&self) -> Option<(Rank, String)> {
        let head = self.sheet.head();
        match head.failed.load(Ordering::Acquire).checked_sub(1) {
            Some(by) => Some((by as Rank, head.cause.get()?)),
            None => self.parent.get()?.failed(),
        }
    }

    /// Says that this process was told to end.
    pub(crate) fn tell_to_end(&self) {
        self.sheet.head().told_to_end.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether all processes of this status board were told to end.
    pub(crate) fn all_are_told_to_end(&self) -> bool {
        self.sheet.head().told_to_end.load(Ordering::Acquire) as usize == self.members.len()
    }

    /// Says that a rank of the world has left: it sends no more.
    pub(crate) fn leave(&self, rank: Rank) {
        if let Some(position) = self.position_of(rank) {
            self.sheet.row(position).since.store(self.tick(), Ordering::Relaxed);
        }
        self.sheet.left(rank).store(1, Ordering::Release);
    }

    /// Whether a rank of the world is known to have left.
    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        self.sheet.left(rank).load(Ordering::Acquire) != 0
    }

    /// Says that this rank goes into a section that may take long.
    pub(crate) fn begin_quiet(&self, label: &str) {
        let (row, hash) = (self.own(), self.know(label));
        if row.quiet_depth.fetch_add(1, Ordering::Relaxed) == 0 {
            row.quiet_label.store(hash, Ordering::Relaxed);
            row.since.store(self.tick(), Ordering::Relaxed);
        }
        self.sheet.head().quiet.fetch_add(1, Ordering::AcqRel);
    }

    /// Says that this rank comes out of the section that it went into last.
    pub(crate) fn end_quiet(&self) {
        let row = self.own();
        if row.quiet_depth.fetch_sub(1, Ordering::Relaxed) == 1 {
            row.since.store(self.tick(), Ordering::Relaxed);
        }
        self.sheet.head().quiet.fetch_sub(1, Ordering::AcqRel);
    }

    /// Says what quiet section a rank is in that does not share this status board, or that none is.
    pub(crate) fn set_quiet_elsewhere(&self, label: Option<&str>) {
        let elsewhere = &self.sheet.head().elsewhere;
        label.map_or_else(|| elsewhere.clear(), |label| elsewhere.set(label));
    }

    /// Whether a rank of the world is in a section that may take long, as far as is known here.
    pub(crate) fn is_quiet(&self) -> bool {
        let head = self.sheet.head();
        let of_world = || self.parent.get().is_some_and(|parent| parent.status.is_quiet());
        head.quiet.load(Ordering::Acquire) > 0 || head.elsewhere.is_set() || of_world()
    }

    /// Reads the clock for all who look at [`StatusBoard::about_now`]; microseconds.
    pub(crate) fn tick(&self) -> u64 {
        let (now, tick) = (now_us(), &self.sheet.head().tick);
        // The line is in the caches of all ranks, and is to stay there.
        if now > tick.load(Ordering::Relaxed) + TICK_US {
            tick.store(now, Ordering::Relaxed);
        }
        now
    }

    /// What time it was when a rank of this status board last read the clock: a look costs a nanosecond.
    #[inline]
    pub(crate) fn about_now(&self) -> u64 {
        self.sheet.head().tick.load(Ordering::Relaxed)
    }

    /// What the rank at a position does.
    pub(crate) fn doing(&self, position: usize) -> Doing {
        let (row, rank, now) = (self.sheet.row(position), self.members[position], now_us());
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
        let quiet = is_quiet.then(|| row.label(row.quiet_label.load(Ordering::Relaxed))).flatten();
        Doing {
            rank,
            host: system::host(),
            process_id: row.process_id.load(Ordering::Relaxed),
            state,
            since_s: seconds_between(since, now),
            quiet,
            last: last.map(|last| last.record(now, |hash| self.label_of(row, hash))),
        }
    }

    /// What a rank of the world has called in this place of the order of calls, as far as is known here: the count, the codes and
    /// the label.
    pub(crate) fn called(&self, rank: Rank, sequence: u64) -> Option<(u64, Codes, u64)> {
        let noted = self.sheet.row(self.position_of(rank)?).ring.of_sequence(sequence)?;
        Some((noted.count, Codes::of_bits(noted.codes), noted.label))
    }

    /// What the rank at a position did last, oldest first.
    pub(crate) fn records(&self, position: usize) -> Vec<Record> {
        let (row, now) = (self.sheet.row(position), now_us());
        row.ring.all().iter().map(|noted| noted.record(now, |hash| self.label_of(row, hash))).collect()
    }

    /// The name of a label, if a rank of this status board has used it of late.
    pub(crate) fn label(&self, hash: u64) -> Option<String> {
        self.label_of(self.own(), hash)
    }

    /// The same, most likely used by the rank of this row.
    fn label_of(&self, row: &Row, hash: u64) -> Option<String> {
        let others = || (0..self.members.len()).find_map(|position| self.sheet.row(position).label(hash));
        row.label(hash).or_else(others)
    }

    /// What stands for a label in messages, whose name is then known to all of this status board.
    pub(crate) fn know(&self, label: &str) -> u64 {
        let hash = hash(label);
        self.own().name(hash, label);
        hash
    }

    /// Writes down that this rank begins a call.
    #[inline]
    pub(crate) fn begin(
        &self,
        sequence: u64,
        count: u64,
        codes: Codes,
        label: u64,
        size_bytes: usize,
    ) -> Recording<'_> {
        let is_long = size_bytes >= LONG_BYTES;
        let now = if is_long { self.tick() } else { self.about_now() };
        let slot = self.ring().begin(sequence, count, codes.bits(), label, (now, is_long));
        Recording { status: self, slot }
    }

    /// Writes down which step the call has come to.
    #[inline]
    pub(crate) fn at_step(&self, phase: usize, step: usize) {
        self.ring().at_step(phase, step);
    }

    /// Writes down for whom the call waits, and how much longer than at the last look.
    pub(crate) fn waits_for(&self, other: Rank, more: Duration) {
        let row = self.own();
        row.waited.store(row.waited.load(Ordering::Relaxed) + more.as_micros() as u64, Ordering::Relaxed);
        row.ring.waits_for(other, self.tick());
    }

    /// Writes down how the call that was begun last has ended.
    #[cfg(any(test, feature = "nccl"))]
    pub(crate) fn end(&self, is_done: bool) {
        Recording { status: self, slot: self.ring().newest() }.end(is_done);
    }

    /// How long this rank has waited for others so far, but for the first moments of each wait.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_micros(self.own().waited.load(Ordering::Relaxed))
    }

    /// What this rank has written down of its calls.
    #[inline]
    pub(super) fn ring(&self) -> &Ring {
        &self.own().ring
    }

    #[inline]
    fn own(&self) -> &Row {
        self.sheet.row(self.position)
    }
}

impl Parent {
    /// The rank of the group that failed first in the world, as the group calls it.
    fn failed(&self) -> Option<(Rank, String)> {
        let (by, cause) = self.status.failed()?;
        self.ranks.iter().position(|&rank| rank == by).map(|by| (by, cause))
    }
}

/// A call that is being written down.
#[derive(Debug)]
#[must_use]
pub(crate) struct Recording<'a> {
    status: &'a StatusBoard,
    slot: &'a Slot,
}

impl Recording<'_> {
    /// Writes down how the call has ended.
    #[inline]
    pub(crate) fn end(self, is_done: bool) {
        self.slot
            .end(is_done, |is_timed| if is_timed { self.status.tick() } else { self.status.about_now() });
    }
}

#[cfg(test)]
mod tests;
