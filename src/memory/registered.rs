//! Registered memory: arrays that the other ranks of the node access in place.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard};

use rustix::fd::{AsRawFd as _, OwnedFd};

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
        Self::new(&Registry::of_threads(), count)
    }

    pub(crate) fn new(registry: &Arc<Registry>, count: usize) -> Result<Self> {
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
        // collective call, for which it is lent as a whole.
        unsafe { std::slice::from_raw_parts(self.block.as_ptr().cast(), self.count) }
    }
}

impl<T: Element> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; the block is borrowed mutably, and no other code of this process accesses it.
        unsafe { std::slice::from_raw_parts_mut(self.block.as_ptr().cast(), self.count) }
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

    /// Returns the location of an address of this process.
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

    /// Returns a location this many bytes further.
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

#[derive(Debug)]
pub(crate) struct Registry {
    /// Whether ranks are processes, so that memory needs a file to be shared.
    processes: bool,
    /// By ascending address.
    segments: RwLock<Vec<Segment>>,
    created: AtomicU32,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    number: u64,
    start: usize,
    size_bytes: usize,
}

impl Registry {
    /// Returns a registry for a rank that shares memory with threads of its process only. Those can access all memory.
    pub(crate) fn of_threads() -> Arc<Self> {
        Arc::new(Self::new(false))
    }

    /// Returns the registry of this process, for ranks that share memory with other processes of the node. All communicators use it, so
    /// each can access memory that another one has allocated.
    pub(crate) fn of_processes() -> Arc<Self> {
        static OF_PROCESS: LazyLock<Arc<Registry>> = LazyLock::new(|| Arc::new(Registry::new(true)));
        Arc::clone(&OF_PROCESS)
    }

    /// Returns whether other processes access this rank's memory.
    pub(crate) fn is_of_processes(&self) -> bool {
        self.processes
    }

    fn new(processes: bool) -> Self {
        Self { processes, segments: RwLock::default(), created: AtomicU32::new(0) }
    }

    /// Allocates touched memory.
    pub(crate) fn allocate(self: &Arc<Self>, size_bytes: usize) -> Result<Block> {
        let failed = |error: rustix::io::Errno| Error::Memory { size_bytes, cause: error.into() };
        let (registry, process_id) = (Arc::clone(self), std::process::id());
        if !self.processes {
            let pages = Pages::private(size_bytes).map_err(failed)?;
            return Ok(Block { pages, file: None, process_id, registry });
        }
        let (file, pages) = Pages::shared(size_bytes).map_err(failed)?;
        pages.touch().map_err(failed)?;
        let number = Location::segment(self.created.fetch_add(1, Ordering::Relaxed), file.as_raw_fd());
        let segment = Segment { number, start: pages.as_ptr() as usize, size_bytes: pages.size_bytes() };
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        let place = segments.partition_point(|other| other.start < segment.start);
        segments.insert(place, segment);
        drop(segments);
        Ok(Block { pages, file: Some(file), process_id, registry })
    }

    /// Returns the location of these bytes for another rank, if they lie in one block of registered memory. (The argument is a pointer, since
    /// the pointer to memory that is lent for writing must allow writes.)
    pub(crate) fn locate(&self, bytes: *const [u8]) -> Option<Location> {
        let address = bytes.cast::<u8>() as usize;
        if !self.processes {
            return Some(Location::of_address(bytes));
        }
        let segments = self.segments();
        let before = segments.partition_point(|segment| segment.start <= address);
        let Segment { number, start, size_bytes } = segments[..before].last()?;
        let offset = address - start;
        (offset + bytes.len() <= *size_bytes).then_some(Location { segment: *number, offset: offset as u64 })
    }

    /// Detaches lent memory from processes that still access it. This process gets a private copy at the same addresses, and the other processes keep
    /// the pages of the file. Returns whether the location is in a segment.
    ///
    /// # Errors
    /// If the system does not provide the memory for the copy. The segment is then still shared.
    pub(crate) fn detach(&self, location: Location) -> rustix::io::Result<bool> {
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        let found = segments.iter().position(|segment| segment.number == location.number());
        let Some(found) = found else { return Ok(false) };
        let Segment { start, size_bytes, .. } = segments[found];
        // SAFETY: the segment is a whole mapping of a shared file. Its block is alive, since it is lent: the call that has lent it borrows it, and
        // does not write to it now.
        unsafe { Pages::make_private(start as *mut u8, size_bytes)? };
        segments.remove(found);
        Ok(true)
    }

    fn segments(&self) -> RwLockReadGuard<'_, Vec<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Block {
    pages: Pages,
    file: Option<OwnedFd>,
    /// The process that created it.
    process_id: u32,
    registry: Arc<Registry>,
}

impl Block {
    fn as_ptr(&self) -> *mut u8 {
        self.pages.as_ptr()
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.pages.size_bytes()
    }

    /// Returns the whole block. Other ranks access it only while it is lent to them.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block owns the pages, and all of their bytes are initialised.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.size_bytes()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A forked child has a copy of a block that its parent still uses.
        let Some(file) = self.file.take().filter(|_| std::process::id() == self.process_id) else { return };
        let start = self.as_ptr() as usize;
        let mut segments = self.registry.segments.write().unwrap_or_else(PoisonError::into_inner);
        if segments.extract_if(.., |segment| segment.start == start).next().is_none() {
            // The segment was detached. If its descriptor were reused, a rank that still accesses it would find another file.
            return std::mem::forget(file);
        }
        // Ranks that have mapped the file keep the mapping until they evict it for others. The file keeps its size: where it is still mapped,
        // for example by a forked child, an access must not raise SIGBUS.
        self.pages.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_memory_is_zero_and_located() {
        let registry = Arc::new(Registry::new(true));
        let mut array = Registered::<f32>::new(&registry, 1000).unwrap();
        assert!(array.iter().all(|&element| element == 0.0));
        array[999] = 1.0;
        let all = registry.locate(bytemuck::cast_slice::<f32, u8>(&array)).unwrap();
        let tail = registry.locate(bytemuck::cast_slice::<f32, u8>(&array[10..])).unwrap();
        assert_eq!((all.segment, all.offset), (tail.segment, 0));
        assert_eq!(tail.offset, 40);
        assert!(registry.locate(&[0_u8; 8][..]).is_none());

        let address = array.as_ptr() as usize;
        drop(array);
        assert!(registry.segments().iter().all(|segment| segment.start != address));
    }

    #[test]
    fn segment_number_contains_its_descriptor_and_is_unique() {
        let registry = Arc::new(Registry::new(true));
        let locate = || {
            let mut block = registry.allocate(8).unwrap();
            let location = registry.locate(block.as_mut_slice()).unwrap();
            (location, block.file.as_ref().unwrap().as_raw_fd())
        };
        let ((first, file), (second, _)) = (locate(), locate());
        assert_eq!(first.file(), file as u64);
        assert_ne!(first.segment, second.segment);
    }

    #[test]
    fn segment_number_never_sets_the_flag_for_shares() {
        for created in [0, 1, (1 << 31) - 4, (1 << 31) - 3, 1 << 31, u32::MAX] {
            let location = Location { segment: Location::segment(created, i32::MAX), offset: 0 };
            assert!(location.segment > Location::SLOT && location.file() == i32::MAX as u64);
            assert!(location.share_of(1, 8).is_none(), "{created}");
        }
    }

    #[test]
    fn memory_of_one_communicator_is_registered_for_the_others() {
        let mut block = Registry::of_processes().allocate(100).unwrap();
        assert!(Registry::of_processes().locate(block.as_mut_slice()).is_some());
    }

    #[test]
    fn arrays_are_located_in_their_own_segments() {
        let registry = Arc::new(Registry::new(true));
        let mut blocks: Vec<_> = (0..300).map(|_| registry.allocate(100).unwrap()).collect();
        // The other blocks are dropped.
        let mut kept: Vec<_> = blocks.drain(..).step_by(3).collect();
        let numbers: std::collections::HashSet<_> = kept
            .iter_mut()
            .map(|block| {
                let bytes = block.as_mut_slice();
                let (whole, end) = (registry.locate(bytes).unwrap(), registry.locate(&bytes[90..]).unwrap());
                assert_eq!((whole.offset, end.offset, whole.segment), (0, 90, end.segment));
                whole.segment
            })
            .collect();
        assert_eq!(numbers.len(), kept.len());
    }

    #[test]
    fn an_array_may_be_empty() {
        let mut array = Registered::<u8>::new(&Registry::of_threads(), 0).unwrap();
        assert!(array.is_empty() && array.as_mut().is_empty());
    }

    #[test]
    fn array_dropped_by_a_forked_child_stays_valid_in_the_parent() {
        let mut array = Registered::<u8>::new(&Registry::of_processes(), 1 << 20).unwrap();
        array.fill(7);
        // SAFETY: the child runs only the next lines, and ends without unwinding or exit handlers.
        match unsafe { libc::fork() } {
            0 => {
                drop(array);
                // SAFETY: it ends this process.
                unsafe { libc::_exit(0) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the status is a local variable.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        assert!(array.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn detached_memory_keeps_its_bytes_and_is_no_longer_shared() {
        let registry = Registry::of_processes();
        let mut array = Registered::<u8>::new(&registry, 10_000).unwrap();
        array.fill(7);
        let location = registry.locate(&raw const array[..]).unwrap();
        // The mapping of another process that accesses it.
        let other = Pages::of_process(std::process::id() as i32, location.file()).unwrap();
        assert!(registry.detach(location.with_shares().after(5)).unwrap());
        assert!(array.iter().all(|&byte| byte == 7), "a rank can still send it");
        // SAFETY: the byte is in the mapping, which no other code uses now.
        unsafe { *other.as_ptr() = 1 };
        assert_eq!(array[0], 7);
        array.fill(8);
        // SAFETY: as before.
        assert_eq!(unsafe { *other.as_ptr().add(1) }, 7);
        assert!(registry.locate(&raw const array[..]).is_none() && !registry.detach(location).unwrap());
        drop(array);
        let reopened = Pages::of_process(std::process::id() as i32, location.file()).unwrap();
        // SAFETY: as before.
        assert_eq!(unsafe { *reopened.as_ptr() }, 1, "the descriptor is not reused");
    }
}
