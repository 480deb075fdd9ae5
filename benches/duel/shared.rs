//! Memory that all ranks have mapped, and a barrier in it.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use unisono::mpi::topology::SimpleCommunicator;
use unisono::mpi::traits::*;

/// Memory that all ranks of a node have mapped: zeroed and touched.
#[derive(Debug)]
pub(crate) struct Shared {
    start: *mut u8,
    size_bytes: usize,
}

impl Shared {
    /// All ranks call it.
    pub(crate) fn new(world: &SimpleCommunicator, size_bytes: usize) -> Self {
        let size_bytes = size_bytes.next_multiple_of(4096);
        let made = (world.rank() == 0).then(|| {
            let file = rustix::fs::memfd_create("duel", MemfdFlags::CLOEXEC).expect("memory for the duel");
            rustix::fs::ftruncate(&file, size_bytes as u64).expect("memory for the duel");
            File::from(file)
        });
        let mut place =
            made.as_ref().map_or([0; 2], |file| [std::process::id() as u64, file.as_raw_fd() as u64]);
        world.process_at_rank(0).broadcast_into(&mut place);
        let [process, file] = place;
        let file = made.unwrap_or_else(|| {
            let path = format!("/proc/{process}/fd/{file}");
            File::options().read(true).write(true).open(&path).expect("ranks of one node and one user")
        });
        // SAFETY: a new mapping at an address that the system chooses overlaps no existing one.
        let start = unsafe {
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
            rustix::mm::mmap(std::ptr::null_mut(), size_bytes, access, flags, &file, 0)
        };
        let start = start.expect("memory for the duel").cast();
        world.barrier();
        Self { start, size_bytes }
    }

    /// Returns the address at this offset.
    ///
    /// # Panics
    /// If `size_bytes` from there are not within the memory.
    pub(crate) fn at(&self, offset: usize, size_bytes: usize) -> *mut u8 {
        assert!(offset + size_bytes <= self.size_bytes, "within the shared memory");
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.start.add(offset) }
    }

    /// Returns a number at this offset.
    ///
    /// # Panics
    /// If it is not within the memory, or not aligned.
    pub(crate) fn number(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(align_of::<AtomicU64>()), "an aligned number");
        // SAFETY: within the mapping and aligned, as was just checked; the mapping lives as long as `self`, and any bits are
        // a number.
        unsafe { &*self.at(offset, size_of::<AtomicU64>()).cast::<AtomicU64>() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping was created by `new` with this size, and nothing borrows from it any more.
        let gone = unsafe { rustix::mm::munmap(self.start.cast(), self.size_bytes) };
        debug_assert!(gone.is_ok(), "the mapping of this memory");
    }
}

/// The distance between two numbers that different ranks write: processors fetch cache lines in pairs.
pub(crate) const APART: usize = 128;

/// A barrier of all ranks.
#[derive(Debug)]
pub(crate) struct Barrier {
    shared: Shared,
    own: usize,
    ranks: usize,
    step: u64,
    turns: bool,
}

impl Barrier {
    /// All ranks call it.
    pub(crate) fn new(world: &SimpleCommunicator) -> Self {
        let ranks = world.size() as usize;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Shared::new(world, ranks * APART);
        Self { shared, own: world.rank() as usize, ranks, step: 0, turns: ranks > cores }
    }

    /// Waits until all ranks have arrived.
    pub(crate) fn wait(&mut self) {
        self.step += 1;
        self.shared.number(self.own * APART).store(self.step, Ordering::Release);
        for rank in 0..self.ranks {
            wait_for(self.shared.number(rank * APART), self.step, self.turns);
        }
    }
}

/// The time that ranks wait for each other.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until a number has reached a step.
///
/// # Panics
/// If it does not within the timeout: its rank is gone.
#[inline]
pub(crate) fn wait_for(number: &AtomicU64, step: u64, yields: bool) {
    let mut spins = 0_u64;
    while number.load(Ordering::Acquire) < step {
        spins += 1;
        if yields {
            std::thread::yield_now();
        }
        if spins >= 1 << 16 {
            wait_long_for(number, step);
        }
    }
}

#[cold]
fn wait_long_for(number: &AtomicU64, step: u64) {
    let began = Instant::now();
    while number.load(Ordering::Acquire) < step {
        std::thread::yield_now();
        assert!(began.elapsed() < TIMEOUT, "another rank does not arrive");
    }
}
