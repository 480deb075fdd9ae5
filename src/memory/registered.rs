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
/// It dereferences to a slice; all elements are initially zero. It may be dropped before or after the communicator, and leaves
/// nothing behind, however the process ends.
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
        // SAFETY: the block is aligned to a page and holds `count` elements, and any bytes are an element.
        // Other ranks write to it only in a collective call, for which it is lent as a whole.
        unsafe { std::slice::from_raw_parts(self.block.as_ptr().cast(), self.count) }
    }
}

impl<T: Element> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; the block is borrowed mutably, and no other code of this process has it.
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
    /// An address in a process that both ranks live in, or that the kernel reads from.
    pub(crate) const ADDRESS: u64 = 1;
    /// The rank's staging memory.
    pub(crate) const STAGING: u64 = 2;
    /// The slot of the message itself.
    pub(crate) const SLOT: u64 = 3;
    /// The first segment number.
    const SEGMENTS: u64 = 4;
    /// Flag of a segment that holds a copy with a separate share for each rank.
    const DEALT: u64 = 1 << 63;

    /// Returns an address of this process.
    pub(crate) fn of_address(bytes: *const [u8]) -> Self {
        Self { segment: Self::ADDRESS, offset: bytes.cast::<u8>() as u64 }
    }

    /// Returns the memory, holding a share for each rank in order.
    pub(crate) fn dealt(self) -> Self {
        Self { segment: self.segment | Self::DEALT, ..self }
    }

    /// Returns the share of one rank, in memory that holds shares of this size; `None` if it holds no shares.
    pub(crate) fn share_of(self, position: usize, share_bytes: usize) -> Option<Self> {
        let is_dealt = self.segment & Self::DEALT != 0;
        is_dealt
            .then(|| Self { segment: self.number(), offset: self.offset + (position * share_bytes) as u64 })
    }

    /// Returns a location this many bytes further.
    pub(crate) fn after(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes as u64, ..self }
    }

    /// Returns the segment that is made after `made` others, with this file. Numbers are not reused before 2³¹ others,
    /// though file descriptors are.
    fn segment(made: u32, file: i32) -> u64 {
        let most = (Self::DEALT >> 32) - Self::SEGMENTS;
        (Self::SEGMENTS + u64::from(made) % most) << 32 | u64::from(file as u32)
    }

    /// Returns the number of the segment itself.
    fn number(self) -> u64 {
        self.segment & !Self::DEALT
    }

    /// Returns the file descriptor of a segment, in the process that made it.
    pub(crate) fn file(self) -> u64 {
        self.segment & u64::from(u32::MAX)
    }
}

/// The registered memory of a rank.
#[derive(Debug)]
pub(crate) struct Registry {
    /// Whether ranks are processes, so that memory needs a file to be shared.
    processes: bool,
    /// In the order of their addresses.
    segments: RwLock<Vec<Segment>>,
    made: AtomicU32,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    number: u64,
    start: usize,
    size_bytes: usize,
}

impl Registry {
    /// For a rank that shares memory only with threads of its process, if at all: they access all memory anyway.
    pub(crate) fn of_threads() -> Arc<Self> {
        Arc::new(Self::new(false))
    }

    /// For a rank that shares memory with processes of the same node. There is one for each process: what one communicator
    /// allocates, the others know too.
    pub(crate) fn of_processes() -> Arc<Self> {
        static OF_PROCESS: LazyLock<Arc<Registry>> = LazyLock::new(|| Arc::new(Registry::new(true)));
        Arc::clone(&OF_PROCESS)
    }

    /// Returns whether others that access this rank's memory are processes.
    pub(crate) fn is_of_processes(&self) -> bool {
        self.processes
    }

    fn new(processes: bool) -> Self {
        Self { processes, segments: RwLock::default(), made: AtomicU32::new(0) }
    }

    /// Allocates memory, touched.
    pub(crate) fn allocate(self: &Arc<Self>, size_bytes: usize) -> Result<Block> {
        let failed = |error: rustix::io::Errno| Error::Memory { size_bytes, cause: error.into() };
        let (registry, process_id) = (Arc::clone(self), std::process::id());
        if !self.processes {
            let pages = Pages::private(size_bytes).map_err(failed)?;
            return Ok(Block { pages, file: None, process_id, registry });
        }
        let (file, pages) = Pages::shared(size_bytes).map_err(failed)?;
        pages.touch().map_err(failed)?;
        let number = Location::segment(self.made.fetch_add(1, Ordering::Relaxed), file.as_raw_fd());
        let segment = Segment { number, start: pages.as_ptr() as usize, size_bytes: pages.size_bytes() };
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        let place = segments.partition_point(|other| other.start < segment.start);
        segments.insert(place, segment);
        drop(segments);
        Ok(Block { pages, file: Some(file), process_id, registry })
    }

    /// Returns the location of these bytes for another rank, if they lie in one block of registered memory. (A pointer,
    /// since memory lent for writing must be writable for the lender.)
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

    /// Takes lent memory back from processes that still access it: this process gets a private copy at the same addresses, and they
    /// keep the pages of the file. Returns whether the location is in a segment.
    ///
    /// # Errors
    /// If the system does not provide the memory for the copy. The segment is then still shared.
    pub(crate) fn detach(&self, location: Location) -> rustix::io::Result<bool> {
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        let found = segments.iter().position(|segment| segment.number == location.number());
        let Some(found) = found else { return Ok(false) };
        let Segment { start, size_bytes, .. } = segments[found];
        // SAFETY: the segment is a whole mapping of a shared file, whose block is alive, since it is lent. The call that has lent it
        // borrows it, and writes nothing to it now.
        unsafe { Pages::make_private(start as *mut u8, size_bytes)? };
        segments.remove(found);
        Ok(true)
    }

    fn segments(&self) -> RwLockReadGuard<'_, Vec<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block of registered memory.
#[derive(Debug)]
pub(crate) struct Block {
    pages: Pages,
    file: Option<OwnedFd>,
    /// The process that made it.
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

    /// Returns all of it. Other ranks access it only while it is lent to them.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the pages are ours, and all of their bytes are set.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.size_bytes()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A forked child has a copy of what its parent still uses.
        let Some(file) = self.file.take().filter(|_| std::process::id() == self.process_id) else { return };
        let start = self.as_ptr() as usize;
        let mut segments = self.registry.segments.write().unwrap_or_else(PoisonError::into_inner);
        if segments.extract_if(.., |segment| segment.start == start).next().is_none() {
            // It was detached: a rank that still accesses it would find another file under a descriptor that is reused.
            return std::mem::forget(file);
        }
        // Ranks that have mapped the file keep the mapping until they need room for others. The file keeps its size: where it is
        // still mapped, by a forked child for example, an access must not raise SIGBUS.
        self.pages.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_memory_is_zero_and_found_again() {
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
    fn a_segment_number_names_its_file_and_comes_once() {
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
    fn no_segment_number_says_that_it_is_dealt() {
        for made in [0, 1, (1 << 31) - 4, (1 << 31) - 3, 1 << 31, u32::MAX] {
            let location = Location { segment: Location::segment(made, i32::MAX), offset: 0 };
            assert!(location.segment > Location::SLOT && location.file() == i32::MAX as u64);
            assert!(location.share_of(1, 8).is_none(), "{made}");
        }
    }

    #[test]
    fn memory_of_one_communicator_is_registered_for_the_others() {
        let mut block = Registry::of_processes().allocate(100).unwrap();
        assert!(Registry::of_processes().locate(block.as_mut_slice()).is_some());
    }

    #[test]
    fn each_of_many_arrays_is_located_in_its_own_segment() {
        let registry = Arc::new(Registry::new(true));
        let mut blocks: Vec<_> = (0..300).map(|_| registry.allocate(100).unwrap()).collect();
        // The blocks in between are gone.
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
    fn an_array_of_nothing_is_an_array() {
        let mut array = Registered::<u8>::new(&Registry::of_threads(), 0).unwrap();
        assert!(array.is_empty() && array.as_mut().is_empty());
    }

    #[test]
    fn a_forked_child_that_drops_an_array_leaves_it_to_its_parent() {
        let mut array = Registered::<u8>::new(&Registry::of_processes(), 1 << 20).unwrap();
        array.fill(7);
        // SAFETY: the child runs only what follows, and ends without unwinding or exit handlers.
        match unsafe { libc::fork() } {
            0 => {
                drop(array);
                // SAFETY: it ends this process.
                unsafe { libc::_exit(0) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the status is this function's.
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
        // Another process that accesses it.
        let other = Pages::of_process(std::process::id() as i32, location.file()).unwrap();
        assert!(registry.detach(location.dealt().after(5)).unwrap());
        assert!(array.iter().all(|&byte| byte == 7), "a rank that sends it goes on");
        // SAFETY: the byte is in the mapping, which nothing else uses now.
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
