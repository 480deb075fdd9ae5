//! The memory layout of a status board.
//!
//! Everything consists of atomics, and zero is the initial state: new pages are zero.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use super::attempts::Attempts;
use super::lockstep::Lockstep;
use super::ring::Ring;
use crate::memory::Pages;
use crossbeam_utils::CachePadded;
use xxhash_rust::xxh3::xxh3_64;

/// The bytes stored of the cause of a failure.
const CAUSE: usize = 480;
pub(super) const LABEL: usize = 52;
/// The bytes stored of the description of a call in a group.
const CALL: usize = 240;
const LABELS: usize = 64;

/// A text that other processes may read at any time. They read all of it or nothing, or a mixture if it changes meanwhile.
#[repr(C)]
pub(super) struct Text<const MOST: usize> {
    /// The length, plus one; 0 until it is written.
    length: AtomicU32,
    bytes: [AtomicU8; MOST],
}

impl<const MOST: usize> Text<MOST> {
    /// Writes a text, truncated to the available space.
    pub(super) fn set(&self, text: &str) {
        let text = &text.as_bytes()[..text.floor_char_boundary(MOST)];
        self.length.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.bytes.iter().zip(text).for_each(|(place, &byte)| place.store(byte, Ordering::Relaxed));
        self.length.store(text.len() as u32 + 1, Ordering::Release);
    }

    pub(super) fn get(&self) -> Option<String> {
        let length = self.length.load(Ordering::Acquire).checked_sub(1)?;
        let bytes = self.bytes.iter().take(length as usize);
        let text: Vec<_> = bytes.map(|byte| byte.load(Ordering::Relaxed)).collect();
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The first part of a status board.
#[repr(C, align(128))]
pub(super) struct Head {
    /// The rank that reported the first failure, plus one; 0 without a failure.
    pub(super) failed: AtomicU32,
    /// The rank that caused the failure, which may be the reporter, plus one. It is written before the cause; 0 if the reporter was killed before.
    pub(super) first: AtomicU32,
    /// The number of processes of this status board that have received a termination signal.
    pub(super) terminating: AtomicU32,
    /// The number of quiet sections of the ranks of this status board, including nested ones.
    pub(super) quiet: AtomicU32,
    /// The number of ranks whose processes have ended, as far as detected, and of ranks that have called `shrink`.
    pub(super) lost: AtomicU32,
    pub(super) cause: Text<CAUSE>,
    /// Whether a rank that does not share this status board is in a quiet section.
    pub(super) quiet_elsewhere: AtomicBool,
    /// The approximate time, in microseconds.
    pub(super) tick: CachePadded<AtomicU64>,
}

#[repr(C)]
pub(super) struct Named {
    hash: AtomicU64,
    name: Text<LABEL>,
}

/// A wait of a rank in a call of a group.
#[repr(C)]
pub(super) struct InGroup {
    /// The latest time when the rank was still waiting, and the start of the wait; microseconds.
    pub(super) at: AtomicU64,
    pub(super) since: AtomicU64,
    pub(super) waits_for: AtomicU32,
    pub(super) call: Text<CALL>,
}

/// The row of a rank, which it writes and all read.
#[repr(C, align(128))]
pub(super) struct Row {
    pub(super) process_id: AtomicU32,
    pub(super) quiet_depth: AtomicU32,
    /// The label of the outermost quiet section.
    pub(super) quiet_label: AtomicU64,
    /// The time when it started, entered or left a quiet section, or left the world.
    pub(super) since: AtomicU64,
    /// The time that it has waited for others, in microseconds.
    pub(super) waited: AtomicU64,
    /// The thread of its last call.
    pub(super) thread: AtomicU64,
    /// Whether its calls run on its communication thread, while its program continues.
    pub(super) in_flight: AtomicBool,
    /// Whether it has used a group on another thread than this communicator.
    pub(super) uses_threads: AtomicBool,
    /// The number of its non-blocking messages that have not ended.
    pub(super) messages: AtomicU32,
    pub(super) in_group: InGroup,
    labels: [Named; LABELS],
    pub(super) ring: Ring,
    /// The attempts to shrink that it has joined. After the ring, which calls use.
    pub(super) attempts: Attempts,
    /// Its calls that a vendor carries out.
    pub(super) lockstep: Lockstep,
}

impl Row {
    /// Stores the name of a label. If two labels have the same slot and no other slot is free, the older one is lost.
    pub(super) fn name(&self, hash: u64, name: &str) {
        let first = hash as usize % LABELS;
        let places = (0..LABELS).map(|after| &self.labels[(first + after) % LABELS]);
        let known = |place: &&Named| matches!(place.hash.load(Ordering::Relaxed), 0) || place.has(hash);
        let place = places.clone().find(known).unwrap_or(&self.labels[first]);
        if !place.has(hash) {
            place.hash.store(0, Ordering::Relaxed);
            place.name.set(&kept(hash, name));
            place.hash.store(hash, Ordering::Release);
        }
    }

    pub(super) fn label(&self, hash: u64) -> Option<String> {
        let place = self.labels.iter().find(|place| place.has(hash))?;
        let name = place.name.get();
        fence(Ordering::Acquire);
        name.filter(|_| place.has(hash))
    }
}

/// Returns the stored form of a label. A label that is too long is truncated and ends with its hash, so that labels with a common prefix differ.
fn kept(hash: u64, name: &str) -> Cow<'_, str> {
    if name.len() <= LABEL {
        return name.into();
    }
    let number = format!("...{hash:08x}");
    let cut = &name[..name.floor_char_boundary(LABEL - number.len())];
    format!("{cut}{number}").into()
}

impl Named {
    fn has(&self, hash: u64) -> bool {
        self.hash.load(Ordering::Acquire) == hash
    }
}

/// The memory of a status board: a head, a byte for each rank of the world with its end, and a row for each rank that shares the board.
#[derive(Debug)]
pub(super) struct Layout {
    pages: Pages,
    pub(super) ranks: usize,
    members: usize,
}

impl Layout {
    /// Returns the memory needed in a world of `ranks` ranks, of which `members` share it.
    pub(super) fn size_bytes(ranks: usize, members: usize) -> usize {
        Self::rows_at(ranks) + members * size_of::<Row>()
    }

    /// Returns the layout over memory that is zero, or that another rank has initialised.
    pub(super) fn new(pages: Pages, ranks: usize, members: usize) -> Option<Self> {
        (Self::size_bytes(ranks, members) <= pages.size_bytes()).then_some(Self { pages, ranks, members })
    }

    fn rows_at(ranks: usize) -> usize {
        (size_of::<Head>() + ranks).next_multiple_of(align_of::<Row>())
    }

    /// Touches the pages that a rank uses in a call.
    pub(super) fn touch(&self, position: usize) -> rustix::io::Result<()> {
        let row = Self::rows_at(self.ranks) + position * size_of::<Row>();
        self.pages.touch_part(0..Self::rows_at(self.ranks))?;
        self.pages.touch_part(row..row + size_of::<Row>())
    }

    /// Returns a reference to the object at an offset.
    ///
    /// # Safety
    /// The layout above must have a `T` at the offset. `T` must consist of atomics, so that it may change behind a reference, and
    /// be valid for all bytes.
    unsafe fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(
            offset + size_of::<T>() <= self.pages.size_bytes() && offset.is_multiple_of(align_of::<T>())
        );
        // SAFETY: the object is inside the mapping, which lives as long as `self`. The caller guarantees the rest.
        unsafe { &*self.pages.as_ptr().add(offset).cast() }
    }

    #[inline]
    pub(super) fn head(&self) -> &Head {
        // SAFETY: the layout begins with the head, which is atomics.
        unsafe { self.at(0) }
    }

    /// Returns the bits of the end of a rank of the world; 0 while it has not ended.
    pub(super) fn ended(&self, rank: usize) -> &AtomicU8 {
        assert!(rank < self.ranks, "rank {rank} in a world of {}", self.ranks);
        // SAFETY: the layout has such a byte for each rank of the world.
        unsafe { self.at(size_of::<Head>() + rank) }
    }

    #[inline]
    pub(super) fn row(&self, position: usize) -> &Row {
        assert!(position < self.members, "position {position} of {}", self.members);
        // SAFETY: the layout has a row for each member; it is atomics.
        unsafe { self.at(Self::rows_at(self.ranks) + position * size_of::<Row>()) }
    }
}

/// Returns the hash of a label in messages, 32 bits; never 0, which means no label.
pub(super) fn hash(label: &str) -> u64 {
    u64::from(xxh3_64(label.as_bytes()) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let pages = Pages::untouched(Layout::size_bytes(3, 2)).unwrap();
        Layout::new(pages, 3, 2).unwrap()
    }

    #[test]
    fn oldest_label_is_replaced_when_slots_collide() {
        let (layout, row) = (layout(), 1);
        let name = |hash: u64| format!("bucket {hash}");
        (1..=LABELS as u64).for_each(|hash| layout.row(row).name(hash, &name(hash)));
        assert!((1..=LABELS as u64).all(|hash| layout.row(row).label(hash) == Some(name(hash))));
        let one_more = LABELS as u64 + 1;
        layout.row(row).name(one_more, &name(one_more));
        assert_eq!(layout.row(row).label(one_more), Some(name(one_more)));
        assert_eq!(layout.row(row).label(1), None, "it had the same slot");
        assert_eq!(layout.row(0).label(2), None, "another rank's");
    }

    #[test]
    fn long_labels_with_a_common_prefix_differ() {
        let layout = layout();
        let [one, other] = ["1", "2"].map(|end| format!("{}{end}", "é".repeat(LABEL)));
        [&one, &other].iter().for_each(|name| layout.row(0).name(hash(name), name));
        let [kept_one, kept_other] = [&one, &other].map(|name| layout.row(0).label(hash(name)).unwrap());
        assert!(kept_one != kept_other && kept_one.len() <= LABEL, "{kept_one} {kept_other}");
        assert!(kept_one.starts_with("ééé") && kept_one.ends_with(&format!("...{:08x}", hash(&one))));
        assert_eq!(kept(7, &"a".repeat(LABEL)), "a".repeat(LABEL));
    }

    #[test]
    fn text_is_truncated_at_a_character_boundary() {
        let layout = layout();
        assert_eq!(layout.head().cause.get(), None);
        layout.head().cause.set(&"é".repeat(CAUSE));
        assert_eq!(layout.head().cause.get(), Some("é".repeat(CAUSE / 2)));
        layout.head().cause.set("");
        assert_eq!(layout.head().cause.get(), Some(String::new()));
    }

    #[test]
    fn different_labels_have_different_hashes() {
        let hashes: std::collections::HashSet<_> =
            (0..10_000).map(|bucket| hash(&format!("bucket {bucket}"))).collect();
        assert!(hashes.len() == 10_000 && !hashes.contains(&0) && hash("") != 0);
    }
}
