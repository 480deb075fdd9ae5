//! Memory mapped from the system: whole pages, touched before use.
//!
//! A page fault costs more than a sum over the page. So pages are touched once on allocation, as huge pages if available, and stay mapped
//! until they are dropped.

use std::ops::Range;
use std::ptr::NonNull;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::system::MemoryLimit;

/// The stride for touching pages: no page is smaller.
const SMALLEST_PAGE: usize = 4096;

/// Mapped memory, page-aligned and initially zero.
#[derive(Debug)]
pub(crate) struct Pages {
    address: NonNull<u8>,
    size_bytes: usize,
}

// SAFETY: the mapping belongs to the process and not to a thread. The code that holds the pointer synchronises reads and writes.
unsafe impl Send for Pages {}

// SAFETY: as for `Send`. The methods here create no references to the bytes, except atomic ones.
unsafe impl Sync for Pages {}

impl Pages {
    /// The prefix of the link to a file that [`Pages::shared`] creates.
    const LINK: &[u8] = b"/memfd:unisono";

    /// Returns untouched memory of this process. Pages that are never used cost nothing.
    pub(crate) fn untouched(size_bytes: usize) -> Result<Self> {
        let size_bytes = whole_pages(size_bytes);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing one.
        let address = unsafe {
            let (access, flags) =
                (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size_bytes, access, flags)?
        };
        Ok(Self::new(address, size_bytes))
    }

    /// Returns touched memory of this process.
    pub(crate) fn private(size_bytes: usize) -> Result<Self> {
        check_available(size_bytes)?;
        let pages = Self::untouched(size_bytes)?;
        pages.prefer_huge();
        pages.touch()?;
        Ok(pages)
    }

    /// Returns memory that other processes can map by its file descriptor. It has no name in any directory, and is freed with the last
    /// process that holds it.
    pub(crate) fn shared(size_bytes: usize) -> Result<(OwnedFd, Self)> {
        check_available(size_bytes)?;
        let size_bytes = whole_pages(size_bytes);
        // Beyond the limit, the system would end the process by a signal.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| size_bytes as u64 > most) {
            return Err(Errno::FBIG);
        }
        let file = rustix::fs::memfd_create("unisono", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, size_bytes as u64)?;
        let pages = Self::of_file(&file)?;
        Ok((file, pages))
    }

    /// Returns the memory of a file that [`Pages::shared`] created, possibly in another process.
    pub(crate) fn of_file(file: impl AsFd) -> Result<Self> {
        let size_bytes = usize::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing one.
        let address = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), size_bytes, access, MapFlags::SHARED, file, 0)?
        };
        let pages = Self::new(address, size_bytes);
        pages.prefer_huge();
        Ok(pages)
    }

    /// Returns the memory of a file that [`Pages::shared`] created and that is open in this or another process, untouched.
    pub(crate) fn of_process(process_id: i32, file: u64) -> Result<Self> {
        Self::of_file(Self::open(process_id, file)?)
    }

    /// Returns a file that [`Pages::shared`] created and that is open in this or another process.
    pub(crate) fn open(process_id: i32, file: u64) -> Result<OwnedFd> {
        let path = Self::path(process_id, file);
        // In a container, `process_id` may denote another process here, and the link any file.
        if !rustix::fs::readlink(&path, Vec::new())?.as_bytes().starts_with(Self::LINK) {
            return Err(Errno::NOENT);
        }
        rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    }

    pub(crate) fn path(process_id: i32, file: u64) -> String {
        format!("/proc/{process_id}/fd/{file}")
    }

    fn new(address: *mut std::ffi::c_void, size_bytes: usize) -> Self {
        let address = NonNull::new(address.cast()).expect("the kernel maps nothing at address 0");
        Self { address, size_bytes }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Returns the size: whole pages.
    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Maps the pages of a file privately in place of its shared mapping. The kernel copies a page before this process writes to it, so
    /// threads may use the pages meanwhile. Once they are [copied](Pages::copy_private), this process shares none of them.
    ///
    /// # Errors
    /// If the system does not provide the mapping. The shared one then remains in place.
    ///
    /// # Safety
    /// The pages are a whole mapping of this file.
    pub(crate) unsafe fn make_private(start: *mut u8, size_bytes: usize, file: impl AsFd) -> Result<()> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // Mapped elsewhere first. Mapped in place, it would unmap the array before it fails for lack of memory.
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing one.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size_bytes, access, flags, file, 0)? };
        let private = Self::new(address, size_bytes);
        // SAFETY: it moves the new mapping, and replaces only the old one. The addresses of that stay mapped throughout, with the same bytes.
        unsafe {
            let may_move = MremapFlags::MAYMOVE;
            rustix::mm::mremap_fixed(address, size_bytes, size_bytes, may_move, start.cast())?;
        }
        // It is no longer at its first address.
        std::mem::forget(private);
        Ok(())
    }

    /// Copies all pages of a private mapping of a file.
    ///
    /// # Errors
    /// If the system does not provide the memory. Other pages are then still shared with processes that write to the file.
    ///
    /// # Safety
    /// The pages are mapped.
    pub(crate) unsafe fn copy_private(start: *mut u8, size_bytes: usize) -> Result<()> {
        let pages = std::mem::ManuallyDrop::new(Self::new(start.cast(), size_bytes));
        pages.touch()
    }

    fn prefer_huge(&self) {
        // SAFETY: advice does not change the content of the memory. A refusal by a system without huge pages is harmless.
        let _ = unsafe { rustix::mm::madvise(self.as_ptr().cast(), self.size_bytes, Advice::LinuxHugepage) };
    }

    /// Touches every page now, rather than on first use.
    pub(crate) fn touch(&self) -> Result<()> {
        self.touch_part(0..self.size_bytes)
    }

    pub(crate) fn touch_part(&self, part: Range<usize>) -> Result<()> {
        assert!(part.end <= self.size_bytes);
        let start = part.start / rustix::param::page_size() * rustix::param::page_size();
        let advice = Advice::LinuxPopulateWrite;
        // SAFETY: the range is inside the mapping. Populating a page does not change its content.
        match unsafe { rustix::mm::madvise(self.as_ptr().add(start).cast(), part.end - start, advice) } {
            // Kernels before 5.14 do not support the advice.
            Err(Errno::INVAL) => {
                for offset in (start..part.end).step_by(SMALLEST_PAGE) {
                    // SAFETY: the byte is inside the mapping. Adding 0 changes no byte that another process may be writing.
                    unsafe { &*self.as_ptr().add(offset).cast::<std::sync::atomic::AtomicU8>() }
                        .fetch_add(0, std::sync::atomic::Ordering::Relaxed);
                }
                Ok(())
            }
            // The pages are not available: using one would raise SIGBUS.
            Err(Errno::FAULT) => Err(Errno::NOMEM),
            touched => touched,
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `self` owns the mapping, and the code that holds the pointer no longer uses it.
        let unmapped = unsafe { rustix::mm::munmap(self.as_ptr().cast(), self.size_bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Less memory than this is not checked: reading the limits takes a tenth of a millisecond.
const CHECKED_BYTES: usize = 1 << 20;

/// Checks that the machine, the container or the job has this much memory. Otherwise the kernel would reserve the addresses, and kill a
/// process, possibly another one, when pages are touched.
fn check_available(size_bytes: usize) -> Result<()> {
    if size_bytes < CHECKED_BYTES {
        return Ok(());
    }
    let system = rustix::system::sysinfo();
    let total = (u128::from(system.totalram) + u128::from(system.totalswap)) * u128::from(system.mem_unit);
    let in_group = MemoryLimit::of_this_process().map_or(u64::MAX, |limit| limit.free_bytes());
    if size_bytes as u128 > total.min(u128::from(in_group)) { Err(Errno::NOMEM) } else { Ok(()) }
}

fn whole_pages(size_bytes: usize) -> usize {
    size_bytes.max(1).next_multiple_of(rustix::param::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_memory_is_an_error_and_no_signal() {
        assert!(Pages::private(1 << 60).is_err() && Pages::shared(1 << 60).is_err());
        let (file, pages) = Pages::shared(1 << 20).unwrap();
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert!(pages.touch().is_err());
    }
}
