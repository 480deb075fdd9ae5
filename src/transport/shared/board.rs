//! The board: the shared memory of the ranks of a node for messages and single passes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use unisono_collectives::Rank;

use super::Own;
use super::channel::{Channel, Post};
use crate::memory::{Loan, Location, Pages, Registry};
use crate::status::{StatusBoard, panicked};
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence, one_order, yield_now};
use crate::system::print_line;

/// The size of a staging piece for long messages.
pub(super) const PIECE: usize = 16 << 10;
/// The number of staging pieces per rank.
pub(super) const PIECES: usize = 4;
/// The size of the staging memory of a rank.
pub(crate) const STAGING_BYTES: usize = PIECE * PIECES;

/// Longer than most copies and reductions take. After this time, memory is revoked from a rank that still accesses it.
const LONGEST_ACCESS: Duration = Duration::from_secs(2);
/// The interval of attempts to revoke it.
const REVOKE_EVERY: Duration = Duration::from_millis(50);

/// The board of a node. Clones refer to the same one.
///
/// New pages are zero, and zero is the initial state of everything on the board.
///
/// Its pages hold two boards of the same layout, so that collectives and point-to-point messages do not delay each other.
#[derive(Debug, Clone)]
pub(in crate::transport) struct Board {
    /// The start of this board on the pages.
    base: *mut u8,
    pages: Arc<Pages>,
    ranks: usize,
}

// SAFETY: `base` points into the pages, which the board keeps and which may be used on any thread. Everything on a board consists of atomics
// and cells, whose users follow the protocols of their types.
unsafe impl Send for Board {}

// SAFETY: as for `Send`.
unsafe impl Sync for Board {}

/// The state of a rank. Each flag that is written often has its own cache line.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Condition {
    /// The rank has failed, and others must not access its memory.
    withdrawn: AtomicBool,
    /// The rank is accessing memory of other ranks.
    inside: CachePadded<AtomicBool>,
    /// Opens the rank's buffer to all.
    pub(super) opened: Post,
    /// The number of other ranks' opened buffers that it has released.
    pub(super) closed: CachePadded<AtomicU64>,
}

impl Board {
    /// Returns the size of the memory for both boards.
    pub(in crate::transport) fn size_bytes(ranks: usize) -> usize {
        2 * Self::staging_at(ranks, ranks)
    }

    /// Returns the board for point-to-point messages, on the second half of the same pages.
    pub(super) fn for_messages(&self) -> Self {
        let start = Self::staging_at(self.ranks, self.ranks);
        assert!(std::ptr::eq(self.base, self.pages.as_ptr()) && 2 * start <= self.pages.size_bytes());
        // SAFETY: the pages are large enough for two boards, and the first one ends here.
        Self { base: unsafe { self.base.add(start) }, ..self.clone() }
    }

    /// Returns the board on memory that was zero before the first rank used it.
    pub(in crate::transport) fn new(pages: Pages, ranks: usize) -> Self {
        assert!(Self::size_bytes(ranks) <= pages.size_bytes(), "a board of {ranks} ranks fits its memory");
        Self { base: pages.as_ptr(), pages: Arc::new(pages), ranks }
    }

    fn channels_at(ranks: usize) -> usize {
        ranks * size_of::<Condition>()
    }

    fn staging_at(ranks: usize, rank: usize) -> usize {
        let first = Self::channels_at(ranks) + ranks * ranks * size_of::<Channel>();
        first.next_multiple_of(4096) + rank * STAGING_BYTES
    }

    /// Touches the pages that every rank uses, if ranks are processes.
    pub(in crate::transport) fn touch(&self) -> rustix::io::Result<()> {
        let end = Self::staging_at(self.ranks, self.ranks);
        for start in [0, end] {
            self.pages.touch_part(start..start + Self::channels_at(self.ranks))?;
            self.pages.touch_part(start + Self::staging_at(self.ranks, 0)..start + end)?;
        }
        Ok(())
    }

    /// Touches the pages of a channel before its first message. With many ranks, most channels are never used.
    #[cold]
    pub(super) fn touch_channel(&self, from: usize, to: usize) {
        let channel = Self::channels_at(self.ranks) + (from * self.ranks + to) * size_of::<Channel>();
        let start = self.base as usize - self.pages.as_ptr() as usize + channel;
        // Pages that are not available now are requested again on use.
        let _ = self.pages.touch_part(start..start + size_of::<Channel>());
    }

    /// Returns a reference to the object at an offset.
    ///
    /// # Safety
    /// The layout above must have a `T` at the offset; `T` must consist of atomics and cells, so that it may change behind a
    /// reference, and be valid when zero.
    unsafe fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(
            offset + size_of::<T>() <= Self::staging_at(self.ranks, 0)
                && offset.is_multiple_of(align_of::<T>())
        );
        // SAFETY: the object is inside the mapping, which lives as long as `self`. The caller promises the rest.
        unsafe { &*self.base.add(offset).cast() }
    }

    pub(super) fn condition(&self, rank: usize) -> &Condition {
        assert!(rank < self.ranks);
        // SAFETY: the layout begins with a condition for each rank; it is atomics and a post, which is a cell.
        unsafe { self.at(rank * size_of::<Condition>()) }
    }

    pub(super) fn channel(&self, from: usize, to: usize) -> &Channel {
        assert!(from < self.ranks && to < self.ranks);
        // SAFETY: the layout has a channel for each ordered pair; it is atomics and cells.
        unsafe { self.at(Self::channels_at(self.ranks) + (from * self.ranks + to) * size_of::<Channel>()) }
    }

    pub(super) fn piece(&self, rank: usize, piece: usize) -> *mut u8 {
        assert!(rank < self.ranks && piece < PIECES);
        // SAFETY: the layout ends with the pieces of each rank.
        unsafe { self.base.add(Self::staging_at(self.ranks, rank) + piece * PIECE) }
    }

    /// Starts to access memory of other ranks, unless one of them has withdrawn it.
    pub(super) fn enter(&self, rank: usize, others: impl Iterator<Item = usize>) -> Option<Inside<'_>> {
        self.condition(rank).enter(others.map(|other| self.condition(other)))
    }

    /// Returns the first of these ranks that has withdrawn its memory. If none has, earlier reads were of lent memory.
    pub(super) fn withdrawn(&self, mut others: impl Iterator<Item = usize>) -> Option<usize> {
        fence(Ordering::Acquire);
        others.find(|&other| self.condition(other).withdrawn.load(Ordering::SeqCst))
    }

    /// Withdraws the memory of the rank at a position among these ranks of the world. Waits until no other rank accesses it, or until `revoke`
    /// returns true. A dead rank accesses no memory.
    fn withdraw(
        &self,
        (rank, members): (usize, &[Rank]),
        status: &StatusBoard,
        revoke: impl Fn() -> rustix::io::Result<bool>,
    ) {
        let others = (0..self.ranks).filter(|&other| other != rank);
        let began = Instant::now();
        let mut warned = false;
        // Not the members of the status board: those of a declared node are only a part of them.
        let has_died = |other: usize| status.has_died(members[other]);
        let conditions = others.map(|other| (self.condition(other), move || has_died(other)));
        self.condition(rank).withdraw(conditions, || {
            status.check_peers();
            if began.elapsed() <= LONGEST_ACCESS {
                return true;
            }
            let revoked = revoke();
            if revoked == Ok(true) {
                return false;
            }
            if !std::mem::replace(&mut warned, true) {
                let refused = |error: rustix::io::Errno| format!(" (the memory cannot be revoked: {error})");
                print_line(&format!(
                    "rank {} waits for a process that still accesses its memory: it is stopped, or very slow{}",
                    status.rank(),
                    revoked.err().map_or(String::new(), refused)
                ));
            }
            std::thread::sleep(REVOKE_EVERY);
            true
        });
    }
}

impl Condition {
    /// Starts to access memory of others, unless one of them has withdrawn it.
    fn enter<'a>(&'a self, mut others: impl Iterator<Item = &'a Self>) -> Option<Inside<'a>> {
        let inside = Inside { inside: &self.inside };
        // Sequentially consistent, here and in `withdraw`: either the entering rank observes that the memory is withdrawn, or the withdrawing
        // rank observes that another one is inside.
        inside.inside.swap(true, Ordering::SeqCst);
        one_order();
        others.all(|other| !other.withdrawn.load(Ordering::SeqCst)).then_some(inside)
    }

    /// Withdraws this rank's memory. Waits until the others have left it or died, while `waits` returns true.
    fn withdraw<'a>(
        &self,
        others: impl Iterator<Item = (&'a Self, impl Fn() -> bool)>,
        mut waits: impl FnMut() -> bool,
    ) {
        self.withdrawn.store(true, Ordering::SeqCst);
        one_order();
        for (other, has_died) in others {
            while other.inside.load(Ordering::SeqCst) && !has_died() {
                if !waits() {
                    return;
                }
                yield_now();
            }
        }
    }
}

/// The access to lent memory. While this lives, no rank takes back memory that it has lent.
#[derive(Debug)]
pub(super) struct Inside<'a> {
    inside: &'a AtomicBool,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.inside.store(false, Ordering::Release);
    }
}

/// Memory lent to other ranks. If it is dropped before they have released it, it is withdrawn first.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    own: Own<'a>,
    location: Location,
    written: bool,
    loan: Option<Loan>,
}

impl<'a> Lent<'a> {
    /// Lends memory of this rank. Others also write to it if it is `written`, and then the memory needs a loan if it is registered.
    pub(super) fn by(own: Own<'a>, (location, loan): (Location, Option<Loan>), written: bool) -> Self {
        Self { own, location, written, loan }
    }

    /// Ends the loan, after all other ranks have released the memory.
    pub(super) fn finish(mut self) {
        self.loan = None;
        std::mem::forget(self);
    }

    /// Revokes the memory from a process that still accesses it. Returns whether that is possible.
    fn revoke(&self) -> rustix::io::Result<bool> {
        // The kernel refuses to read unmapped memory, and a rank checks the loan after it has read. But a rank cannot be kept from writing.
        let is_only_read = self.location.segment == Location::ADDRESS && !self.written;
        Ok(Registry::detach(self.location)? || is_only_read && self.own.registry == Registry::Processes)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Own { position, members, board, status, .. } = self.own;
        if std::thread::panicking() {
            // Code that catches the panic may keep the communicator, and no rank should wait for the memory.
            status.fail(status.rank(), status.rank(), &panicked());
        }
        // No rank needs the results of a call that has failed.
        self.loan = None;
        board.withdraw((position, members), status, || self.revoke());
    }
}

#[cfg(all(test, loom))]
mod tests {
    mod orders;
}

#[cfg(all(test, not(loom)))]
mod tests;
