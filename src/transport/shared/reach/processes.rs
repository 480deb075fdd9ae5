//! Access to the memory of other processes of the node.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::hint::black_box;
use std::io;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::kernels;
use crate::memory::{Location, Pages};

/// Longer than a launcher takes to send a signal to all ranks of a node.
const SIGNAL: Duration = Duration::from_millis(200);
/// The size of the copies that measure the kernel's speed, which take about a millisecond each if the kernel is slow.
const TRIAL_BYTES: usize = 2 << 20;
const TRIALS: usize = 3;
/// The distance between the places of both arrays within a page. The kernel copies by `rep movsb`, which takes six times as long at such a
/// distance on some processors (AMD EPYC, Zen 3).
const OFFSET: usize = 16;
/// The factor by which a kernel copy may be slower than a process's own copy of cached data and still be worth it, since Unisono's copies go
/// through memory that two cores write alternately.
const MAX_SLOWDOWN: u32 = 2;

/// Access to the memory of the processes of a node, by position.
#[derive(Debug)]
pub(in crate::transport) struct Processes {
    pub(super) process_ids: Vec<i32>,
    /// The mapped segments of each rank, by their numbers. They stay mapped until the rank frees them.
    mapped: Vec<BTreeMap<u64, Segment>>,
    /// Whether the kernel copies from and to memory that is not registered.
    pub(super) by_kernel: bool,
}

/// A segment of another rank, mapped here.
#[derive(Debug)]
struct Segment {
    /// The descriptor in the other process.
    file: u64,
    /// The identity of the file: the descriptor may be reused.
    inode: u64,
    pages: Pages,
}

impl Segment {
    /// Maps the memory of a file that is open in another process.
    fn map(process_id: i32, file: u64) -> Result<Self> {
        let pages = Pages::of_process(process_id, file).map_err(|error| failed(0, error.into()))?;
        let size_bytes = pages.size_bytes();
        pages.touch().map_err(|error| Error::Memory { size_bytes, cause: error.into() })?;
        Ok(Self { file, inode: inode(process_id, file).unwrap_or(0), pages })
    }
}

impl Processes {
    /// Returns the access to these processes.
    pub(in crate::transport) fn new(process_ids: Vec<i32>, by_kernel: bool) -> Self {
        let mapped = process_ids.iter().map(|_| BTreeMap::new()).collect();
        Self { process_ids, mapped, by_kernel }
    }

    /// Returns the local address of another rank's registered memory.
    pub(super) fn pointer(&mut self, of: usize, location: Location, size_bytes: usize) -> Result<*mut u8> {
        let pages = self.segment(of, location)?;
        let fits = location
            .offset
            .checked_add(size_bytes as u64)
            .is_some_and(|end| end <= pages.size_bytes() as u64);
        if !fits {
            // The descriptor may denote other memory, if the program has closed descriptors that are not its own.
            let cause = io::Error::other("another rank has closed the descriptor of its memory");
            return Err(Error::Memory { size_bytes, cause });
        }
        // SAFETY: the address is inside the mapping.
        Ok(unsafe { pages.as_ptr().add(location.offset as usize) })
    }

    fn segment(&mut self, of: usize, location: Location) -> Result<&Pages> {
        let (mapped, process_id) = (&mut self.mapped[of], self.process_ids[of]);
        if !mapped.contains_key(&location.segment) {
            // Unmaps segments that the rank has freed.
            mapped.retain(|_, segment| inode(process_id, segment.file) == Some(segment.inode));
            let segment = Segment::map(process_id, location.file()).or_else(|_| {
                // The system limits the number of mappings.
                mapped.clear();
                Segment::map(process_id, location.file())
            });
            mapped.insert(location.segment, segment?);
        }
        Ok(&mapped[&location.segment].pages)
    }

    /// Copies from an address of another rank by the kernel.
    pub(in crate::transport::shared) fn fetch(&self, of: usize, address: u64, into: &mut [u8]) -> Result<()> {
        let size_bytes = into.len();
        read(self.process_ids[of], address, into).map_err(|cause| failed(size_bytes, cause))
    }

    /// Copies to an address of another rank, which lends the memory, by the kernel.
    pub(in crate::transport::shared) fn store(&self, of: usize, address: u64, from: &[u8]) -> Result<()> {
        let size_bytes = from.len();
        write(self.process_ids[of], address, from).map_err(|cause| failed(size_bytes, cause))
    }
}

/// Returns the error of a copy or a mapping. If a signal ends the job and the other process has ended already, the signal ends this one in a
/// moment too, before it reports an error. Otherwise this rank detects the end of the process meanwhile.
fn failed(size_bytes: usize, cause: io::Error) -> Error {
    // The folder of a process that has ended denies access, or does not exist.
    if matches!(cause.raw_os_error(), Some(libc::ESRCH | libc::ENOENT | libc::EACCES)) {
        std::thread::sleep(SIGNAL);
    }
    Error::Memory { size_bytes, cause }
}

/// Returns the identity of the file, if it exists.
fn inode(process_id: i32, file: u64) -> Option<u64> {
    rustix::fs::stat(Pages::path(process_id, file)).ok().map(|status| status.st_ino)
}

/// Returns whether the kernel allows this process to read that one's memory, tested with a known value.
pub(in crate::transport) fn can_read(process_id: i32, address: u64, expected: u64) -> bool {
    let mut found = [0; 8];
    read(process_id, address, &mut found).is_ok() && u64::from_ne_bytes(found) == expected
}

/// Returns whether the kernel copies about as fast as a process does itself. The first call measures it, since a process may have many worlds
/// and groups.
pub(in crate::transport) fn is_kernel_fast() -> bool {
    static IS_FAST: LazyLock<bool> = LazyLock::new(measure_kernel);
    *IS_FAST
}

/// Measures a kernel copy against a process's own. The kernel also looks up every page, which takes a small part of the time on some
/// processors (Intel Xeon, Cascade Lake), and three times as long as the copy on others (AMD EPYC, Zen 5).
///
/// The arrays are from the heap, as those of most programs: in huge pages there would be few to look up.
fn measure_kernel() -> bool {
    let own = std::process::id() as i32;
    let array = |size_bytes| {
        let mut array = Vec::new();
        array.try_reserve_exact(size_bytes).ok()?;
        array.resize(size_bytes, 1);
        Some(array)
    };
    let (Some(from), Some(mut into)) = (array(TRIAL_BYTES), array(TRIAL_BYTES + OFFSET)) else {
        return false;
    };
    let into = &mut into[OFFSET..];
    let mut best = [Duration::MAX; 2];
    for _ in 0..TRIALS {
        let began = Instant::now();
        if read(own, from.as_ptr() as u64, black_box(&mut *into)).is_err() {
            return false;
        }
        let between = Instant::now();
        kernels::copy(black_box(&mut *into), black_box(&*from));
        best = [best[0].min(between - began), best[1].min(between.elapsed())];
    }
    best[0] < best[1] * MAX_SLOWDOWN
}

/// Reads another process's memory: `process_vm_readv` (cross memory attach).
fn read(process_id: i32, address: u64, into: &mut [u8]) -> io::Result<()> {
    // SAFETY: the kernel writes to these bytes only, which are borrowed mutably.
    unsafe { transfer(libc::process_vm_readv, process_id, address, into) }
}

/// Writes another process's memory: `process_vm_writev` (cross memory attach).
fn write(process_id: i32, address: u64, from: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel only reads these bytes. It writes to memory that the other process lends for this.
    unsafe { transfer(libc::process_vm_writev, process_id, address, std::ptr::from_ref(from).cast_mut()) }
}

/// The type of both system calls.
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// Copies between these bytes and as many at an address of another process, which the kernel checks.
///
/// # Safety
/// The bytes must be valid for writes if `call` reads the other process, and for reads if it writes there. The other process must lend the memory
/// to which it writes.
unsafe fn transfer(call: Call, process_id: i32, address: u64, bytes: *mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let iov_len = bytes.len() - done;
        let local = libc::iovec { iov_base: bytes.cast::<u8>().wrapping_add(done).cast(), iov_len };
        let remote = libc::iovec { iov_base: (address + done as u64) as *mut c_void, iov_len };
        // SAFETY: the caller promises that the kernel may access the rest of the bytes. Both descriptions are alive.
        match usize::try_from(unsafe { call(process_id, &raw const local, 1, &raw const remote, 1, 0) }) {
            Err(_) => return Err(io::Error::last_os_error()),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => done += copied,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_its_own_memory() {
        let value = 0x1234_5678_9abc_def0_u64;
        let own = std::process::id() as i32;
        assert!(can_read(own, (&raw const value) as u64, value));
        assert!(!can_read(own, (&raw const value) as u64, value + 1));
        assert!(!can_read(own, 8, value), "nothing is mapped there");
    }

    #[test]
    fn a_process_writes_its_own_memory() {
        let (own, mut place) = (std::process::id() as i32, [0_u8; 5]);
        write(own, place.as_mut_ptr() as u64, b"lent!").unwrap();
        assert_eq!(&place, b"lent!");
        assert!(write(own, 8, b"?").is_err());
    }

    #[test]
    fn file_of_another_process_is_mapped() {
        use rustix::fd::AsRawFd as _;
        let (file, pages) = Pages::shared(100).unwrap();
        let again = Segment::map(std::process::id() as i32, file.as_raw_fd() as u64).unwrap().pages;
        // SAFETY: both mappings are of the same memory, and no other code uses it.
        unsafe {
            *pages.as_ptr() = 7;
            assert_eq!(*again.as_ptr(), 7);
        }
        assert!(Segment::map(std::process::id() as i32, 999_999).is_err());
        assert!(Segment::map(std::process::id() as i32, 0).is_err(), "standard input is not a segment");
    }

    #[test]
    fn hundreds_of_alternating_arrays_stay_mapped() {
        let registry = crate::memory::Registry::Processes;
        let mut processes = Processes::new(vec![std::process::id() as i32], false);
        let mut blocks: Vec<_> = (0..300).map(|_| registry.allocate(100).unwrap()).collect();
        let mut pointers = || {
            let reach = |block: &mut crate::memory::Block| {
                let location = registry.locate(block.as_mut_slice()).unwrap();
                processes.pointer(0, location, 1).unwrap()
            };
            blocks.iter_mut().map(reach).collect::<Vec<_>>()
        };
        assert_eq!(pointers(), pointers());
        assert_eq!(processes.mapped[0].len(), 300);
    }

    #[test]
    fn dropped_segments_are_unmapped() {
        let registry = crate::memory::Registry::Processes;
        let mut processes = Processes::new(vec![std::process::id() as i32], false);
        let mut kept = registry.allocate(100).unwrap();
        let mut reach = |block: &mut crate::memory::Block| {
            let location = registry.locate(block.as_mut_slice()).unwrap();
            // SAFETY: the byte is in the block, and no other code uses it.
            unsafe { *processes.pointer(0, location, 1).unwrap() = 7 };
            assert_eq!(block.as_mut_slice()[0], 7);
            processes.mapped[0].len()
        };
        assert_eq!(reach(&mut kept), 1);
        for _ in 0..3 {
            assert_eq!(reach(&mut registry.allocate(100).unwrap()), 2);
        }
        assert_eq!(reach(&mut kept), 2);
    }
}
