//! Registered memory: arrays that the other ranks of the node access in place.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::FallocateFlags;

use super::pages::Pages;
use crate::dtype::Element;
use crate::error::{Error, Result};

/// An array that the other ranks of the node access without a copy, from [`crate::Communicator::alloc`].
///
/// It dereferences to a slice, whose elements are initially zero. It may be dropped before or after the communicator. The memory is freed
/// even if the process is killed.
pub struct Registered<T> {
    block: Block,
    count: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Registered<T> {
    /// Returns an array for this rank alone: no other rank can access it, and a collective on it costs as much as on any
    /// slice. It is touched on allocation, and uses huge pages if available.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system does not provide the memory.
    ///
    /// # Panics
    /// If the size of `count` elements exceeds the address space.
    ///
    /// ```
    /// let moments = unisono::Registered::<f32>::local(1 << 16)?;
    /// assert_eq!(moments[..2], [0.0, 0.0]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn local(count: usize) -> Result<Self> {
        Self::new(Registry::Threads, count)
    }

    pub(crate) fn new(registry: Registry, count: usize) -> Result<Self> {
        let size_bytes = count.checked_mul(size_of::<T>()).filter(|&size| size <= isize::MAX as usize);
        let size_bytes =
            size_bytes.unwrap_or_else(|| panic!("{count} {} exceed the address space", T::DTYPE));
        Ok(Self { block: registry.allocate(size_bytes)?, count, elements: PhantomData })
    }
}

impl<T: Element> Deref for Registered<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the block is aligned to a page and holds `count` elements, and any bytes are valid elements. Other ranks write to it only in a
        // collective call, which borrows what it lends.
        unsafe { std::slice::from_raw_parts(self.block.pages.as_ptr().cast(), self.count) }
    }
}

impl<T: Element> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; the block is borrowed mutably, and no other code of this process accesses it.
        unsafe { std::slice::from_raw_parts_mut(self.block.pages.as_ptr().cast(), self.count) }
    }
}

impl<T: Element> fmt::Debug for Registered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The location of bytes, for another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Location {
    /// The memory of the rank: the number of a segment, or one of the constants.
    pub(crate) segment: u64,
    /// The offset in that memory, in bytes.
    pub(crate) offset: u64,
}

impl Location {
    /// An address: in a process of both ranks, or for reads by the kernel.
    pub(crate) const ADDRESS: u64 = 1;
    pub(crate) const STAGING: u64 = 2;
    /// The slot of the message itself.
    pub(crate) const SLOT: u64 = 3;
    const SEGMENTS: u64 = 4;
    /// The flag of a segment that holds a separate share for each rank.
    const HAS_SHARES: u64 = 1 << 63;

    pub(crate) fn of_address(bytes: *const [u8]) -> Self {
        Self { segment: Self::ADDRESS, offset: bytes.cast::<u8>() as u64 }
    }

    /// Returns the location of memory that holds a share for each rank in order.
    pub(crate) fn with_shares(self) -> Self {
        Self { segment: self.segment | Self::HAS_SHARES, ..self }
    }

    /// Returns the location of one rank's share, where shares have this size; `None` if the memory holds no shares.
    pub(crate) fn share_of(self, position: usize, share_bytes: usize) -> Option<Self> {
        let has_shares = self.segment & Self::HAS_SHARES != 0;
        has_shares
            .then(|| Self { segment: self.number(), offset: self.offset + (position * share_bytes) as u64 })
    }

    pub(crate) fn after(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes as u64, ..self }
    }

    /// Returns the number of a segment with this file descriptor, before which `created` others were created. Numbers are not reused before
    /// 2³¹ others, in contrast to descriptors.
    fn segment(created: u32, file: i32) -> u64 {
        let most = (Self::HAS_SHARES >> 32) - Self::SEGMENTS;
        (Self::SEGMENTS + u64::from(created) % most) << 32 | u64::from(file as u32)
    }

    /// Returns the number of the segment, without the flag.
    fn number(self) -> u64 {
        self.segment & !Self::HAS_SHARES
    }

    /// Returns the file descriptor of a segment, in the process that created it.
    pub(crate) fn file(self) -> u64 {
        self.segment & u64::from(u32::MAX)
    }
}

/// The allocator of memory that other ranks access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Registry {
    /// The ranks are threads of this process, which can access all of its memory.
    #[default]
    Threads,
    /// The ranks are processes of the node, so memory needs a file to be shared. Each communicator of this process can access memory that another
    /// one has allocated.
    Processes,
}

/// The segments of this process that other processes access, by ascending address.
static SEGMENTS: RwLock<Vec<Segment>> = RwLock::new(Vec::new());

#[derive(Debug)]
struct Segment {
    number: u64,
    start: usize,
    size_bytes: usize,
    /// Shared with the loans of its memory.
    loans: Loan,
    /// Whether this process has mapped it privately.
    is_detached: bool,
}

impl Segment {
    /// Registers the segment. It replaces those at the same addresses, whose blocks a forked child has unmapped.
    fn insert(self) {
        let (start, end) = (self.start, self.start + self.size_bytes);
        let mut segments = SEGMENTS.write().unwrap_or_else(PoisonError::into_inner);
        segments.retain(|other| other.start + other.size_bytes <= start || end <= other.start);
        let place = segments.partition_point(|other| other.start < start);
        segments.insert(place, self);
    }
}

/// Keeps lent memory shared with the processes that write to it, while it lives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loan(Arc<()>);

impl Registry {
    /// Allocates touched memory.
    pub(crate) fn allocate(self, size_bytes: usize) -> Result<Block> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let failed = |error: rustix::io::Errno| Error::Memory { size_bytes, cause: error.into() };
        let process_id = std::process::id();
        if self == Self::Threads {
            let pages = Pages::private(size_bytes).map_err(failed)?;
            return Ok(Block { pages, file: None, process_id });
        }
        let (file, pages) = Pages::shared(size_bytes).map_err(failed)?;
        pages.touch().map_err(failed)?;
        let number = Location::segment(CREATED.fetch_add(1, Ordering::Relaxed), file.as_raw_fd());
        let (start, size_bytes) = (pages.as_ptr() as usize, pages.size_bytes());
        Segment { number, start, size_bytes, loans: Loan::default(), is_detached: false }.insert();
        Ok(Block { pages, file: Some(file), process_id })
    }

    /// Returns the location of these bytes for another rank, if they lie in one block of registered memory. (The argument is a pointer, since
    /// the pointer to memory that is lent for writing must allow writes.)
    pub(crate) fn locate(self, bytes: *const [u8]) -> Option<Location> {
        self.located(bytes, |location, _| location)
    }

    /// Like [`locate`](Self::locate), for bytes that other ranks write to: they stay shared while the loan lives. (In a process of all ranks
    /// they always do.)
    pub(crate) fn lend(self, bytes: *const [u8]) -> Option<(Location, Option<Loan>)> {
        self.located(bytes, |location, segment| (location, segment.map(|segment| segment.loans.clone())))
    }

    fn located<R>(
        self,
        bytes: *const [u8],
        found: impl FnOnce(Location, Option<&Segment>) -> R,
    ) -> Option<R> {
        let address = bytes.cast::<u8>() as usize;
        if self == Self::Threads {
            return Some(found(Location::of_address(bytes), None));
        }
        let segments = SEGMENTS.read().unwrap_or_else(PoisonError::into_inner);
        let before = segments.partition_point(|segment| segment.start <= address);
        let segment = segments[..before].last().filter(|segment| !segment.is_detached)?;
        let offset = address - segment.start;
        let location = Location { segment: segment.number, offset: offset as u64 };
        (offset + bytes.len() <= segment.size_bytes).then(|| found(location, Some(segment)))
    }

    /// Detaches lent memory from processes that still access it, with the rest of its segment. This process gets a private copy at the same
    /// addresses, and the other processes keep the pages of the file. Returns whether the memory is detached: it is not if it is in no
    /// segment, or while another loan of the segment lives, whose ranks write to it.
    ///
    /// # Errors
    /// If the system does not provide the memory for the copy.
    pub(crate) fn detach(location: Location) -> rustix::io::Result<bool> {
        let mut segments = SEGMENTS.write().unwrap_or_else(PoisonError::into_inner);
        let found = segments.iter_mut().find(|segment| segment.number == location.number());
        let Some(Segment { start, size_bytes, loans, is_detached, .. }) = found else { return Ok(false) };
        let start = *start as *mut u8;
        if !*is_detached {
            if Arc::get_mut(&mut loans.0).is_none() {
                return Ok(false);
            }
            // SAFETY: the block of the segment is alive, since it is lent, and so are its file and its mapping.
            unsafe {
                let file = BorrowedFd::borrow_raw(location.file() as i32);
                Pages::make_private(start, *size_bytes, file)?;
            }
            *is_detached = true;
        }
        // SAFETY: as before.
        unsafe { Pages::copy_private(start, *size_bytes).map(|()| true) }
    }
}

#[derive(Debug)]
pub(crate) struct Block {
    pages: Pages,
    file: Option<OwnedFd>,
    /// The process that created it.
    process_id: u32,
}

impl Block {
    pub(crate) fn size_bytes(&self) -> usize {
        self.pages.size_bytes()
    }

    /// Returns the whole block. Other ranks access it only while it is lent to them.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block owns the pages, and all of their bytes are initialised.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_ptr(), self.size_bytes()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        let start = self.pages.as_ptr() as usize;
        if std::process::id() != self.process_id {
            // The parent of this forked child still uses the memory. The child's own table may have been locked when it was forked.
            if let Ok(mut segments) = SEGMENTS.try_write() {
                segments.retain(|segment| segment.start != start);
            }
            return;
        }
        let mut segments = SEGMENTS.write().unwrap_or_else(PoisonError::into_inner);
        let segment = segments.extract_if(.., |segment| segment.start == start).next();
        // Ranks that have mapped the file keep the mapping until they evict it for others. They read zeros from now on. The file keeps its size:
        // where it is still mapped, for example by a forked child, an access must not raise SIGBUS.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(&file, flags, 0, self.size_bytes() as u64);
        if segment.is_none_or(|segment| segment.is_detached) {
            // A rank may still access the file, in a call that fails. If its descriptor were reused, that rank would find another file.
            std::mem::forget(file);
        }
    }
}

#[cfg(test)]
mod tests;
