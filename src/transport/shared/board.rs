//! The memory over which ranks of a node send each other messages, and how each of them is in the midst of one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use super::channel::{Channel, Post};
use crate::memory::Pages;
use crate::status::{StatusBoard, panicked};
use crate::sync::{AtomicBool, AtomicU64, Ordering, one_order, yield_now};

/// How much of a long message is staged at a time, and how many such pieces a rank has.
pub(super) const PIECE: usize = 16 << 10;
pub(super) const PIECES: usize = 4;

/// More than any copy or reduction takes.
const LONGEST_VISIT: Duration = Duration::from_secs(20);

/// The board of a node. Clones name the same one.
///
/// New pages are zero, and zero is how everything on the board begins.
#[derive(Debug, Clone)]
pub(in crate::transport) struct Board {
    pages: Arc<Pages>,
    ranks: usize,
}

/// What comes first on a board.
#[derive(Debug)]
#[repr(C, align(128))]
struct Head {
    /// The number of the board, so that another memory is not taken for it.
    number: AtomicU64,
}

/// How a rank is. Each flag that is written often has a cache line of its own.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Condition {
    /// It has failed: nobody may touch its memory any more.
    withdrawn: AtomicBool,
    /// It is reading or writing memory of other ranks.
    inside: CachePadded<AtomicBool>,
    /// It opens its buffer to all.
    pub(super) opened: Post,
    /// How many opened buffers of others it is done with.
    pub(super) closed: CachePadded<AtomicU64>,
}

impl Board {
    /// How much memory a board needs.
    pub(in crate::transport) fn size_bytes(ranks: usize) -> usize {
        Self::staging_at(ranks, ranks)
    }

    /// The board on zeroed memory that only one caller makes a board of.
    pub(in crate::transport) fn new(pages: Pages, ranks: usize, number: u64) -> Self {
        let board = Self { pages: Arc::new(pages), ranks };
        assert!(
            Self::size_bytes(ranks) <= board.pages.size_bytes(),
            "a board of {ranks} ranks fits its memory"
        );
        board.head().number.store(number, Ordering::Release);
        board
    }

    /// The board with this number that another rank made on this memory, if it did.
    pub(in crate::transport) fn existing(pages: Pages, ranks: usize, number: u64) -> Option<Self> {
        let fits = Self::size_bytes(ranks) <= pages.size_bytes();
        let board = Self { pages: Arc::new(pages), ranks };
        (fits && board.head().number.load(Ordering::Acquire) == number).then_some(board)
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    fn conditions_at() -> usize {
        size_of::<Head>()
    }

    fn channels_at(ranks: usize) -> usize {
        Self::conditions_at() + ranks * size_of::<Condition>()
    }

    fn staging_at(ranks: usize, rank: usize) -> usize {
        let first = Self::channels_at(ranks) + ranks * ranks * size_of::<Channel>();
        first.next_multiple_of(4096) + rank * PIECE * PIECES
    }

    /// Has the pages made that every rank uses if ranks are processes.
    pub(in crate::transport) fn touch(&self) -> rustix::io::Result<()> {
        self.pages.touch_part(0..Self::channels_at(self.ranks))?;
        self.pages.touch_part(Self::staging_at(self.ranks, 0)..Self::size_bytes(self.ranks))
    }

    /// Has the pages of a channel made, before its first message: most of the channels of many ranks are
    /// never used.
    #[cold]
    pub(super) fn touch_channel(&self, from: usize, to: usize) {
        let start = Self::channels_at(self.ranks) + (from * self.ranks + to) * size_of::<Channel>();
        // Pages that cannot be had now are asked for again when they are used.
        let _ = self.pages.touch_part(start..start + size_of::<Channel>());
    }

    /// What lies at an offset.
    ///
    /// # Safety
    /// The offset must be one at which the layout above has a `T`, which must be made of atomics and cells,
    /// so that it may change behind a reference, and be valid where it is zero.
    unsafe fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(
            offset + size_of::<T>() <= self.pages.size_bytes() && offset.is_multiple_of(align_of::<T>())
        );
        // SAFETY: inside the mapping, which lives as long as `self`; the rest is the caller's promise.
        unsafe { &*self.pages.as_ptr().add(offset).cast() }
    }

    fn head(&self) -> &Head {
        // SAFETY: the layout begins with the head, which is atomics.
        unsafe { self.at(0) }
    }

    pub(super) fn condition(&self, rank: usize) -> &Condition {
        assert!(rank < self.ranks);
        // SAFETY: the layout has a condition for each rank; it is atomics and a post, which is a cell.
        unsafe { self.at(Self::conditions_at() + rank * size_of::<Condition>()) }
    }

    /// What one rank sends to another.
    pub(super) fn channel(&self, from: usize, to: usize) -> &Channel {
        assert!(from < self.ranks && to < self.ranks);
        // SAFETY: the layout has a channel for each ordered pair; it is atomics and cells.
        unsafe { self.at(Self::channels_at(self.ranks) + (from * self.ranks + to) * size_of::<Channel>()) }
    }

    /// A piece of a rank's staging memory.
    pub(super) fn piece(&self, rank: usize, piece: usize) -> *mut u8 {
        assert!(rank < self.ranks && piece < PIECES);
        // SAFETY: the layout ends with the pieces of each rank.
        unsafe { self.pages.as_ptr().add(Self::staging_at(self.ranks, rank) + piece * PIECE) }
    }

    /// Goes inside the memory of other ranks, unless one of them has withdrawn it.
    pub(super) fn enter(&self, rank: usize, others: impl Iterator<Item = usize>) -> Option<Inside<'_>> {
        self.condition(rank).enter(others.map(|other| self.condition(other)))
    }

    /// Lets nobody into a rank's memory any more, and waits until those are out who are inside.
    fn withdraw(&self, rank: usize) {
        let others = (0..self.ranks).filter(|&other| other != rank);
        let began = Instant::now();
        self.condition(rank).withdraw(others.map(|other| self.condition(other)), || {
            if began.elapsed() > LONGEST_VISIT {
                // To return would be to let the memory be freed, or changed, under the other's hands.
                eprintln!("unisono: a rank of the node does not let go of memory of rank {rank}");
                std::process::abort();
            }
        });
    }
}

impl Condition {
    /// Goes inside the memory of others, unless one of them has withdrawn it.
    fn enter<'a>(&'a self, mut others: impl Iterator<Item = &'a Self>) -> Option<Inside<'a>> {
        let inside = Inside { inside: &self.inside };
        // There is one order of all that is sequentially consistent, here and in `withdraw`: a rank that enters sees that the
        // memory is withdrawn, or the rank that withdraws it sees that another is inside.
        inside.inside.swap(true, Ordering::SeqCst);
        one_order();
        others.all(|other| !other.withdrawn.load(Ordering::SeqCst)).then_some(inside)
    }

    /// Lets nobody into this rank's memory any more, and waits until the others are out; `waits` is called meanwhile.
    fn withdraw<'a>(&self, others: impl Iterator<Item = &'a Self>, waits: impl Fn()) {
        self.withdrawn.store(true, Ordering::SeqCst);
        one_order();
        for other in others {
            while other.inside.load(Ordering::SeqCst) {
                waits();
                yield_now();
            }
        }
    }
}

/// As long as this lives, no rank takes back memory that it has lent.
#[derive(Debug)]
pub(super) struct Inside<'a> {
    inside: &'a AtomicBool,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.inside.store(false, Ordering::Release);
    }
}

/// Memory that a rank lends to others. If it must end before they have said that they are done, they are kept
/// out first.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    board: &'a Board,
    status: &'a StatusBoard,
    rank: usize,
}

impl<'a> Lent<'a> {
    pub(super) fn by(board: &'a Board, status: &'a StatusBoard, rank: usize) -> Self {
        Self { board, status, rank }
    }

    /// All others have said that they are done.
    pub(super) fn take_back(self) {
        std::mem::forget(self);
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Whoever catches the panic may keep the communicator; nobody is to wait for the memory.
            self.status.fail(self.status.rank(), &panicked());
        }
        self.board.withdraw(self.rank);
    }
}

#[cfg(all(test, loom))]
mod orders;
