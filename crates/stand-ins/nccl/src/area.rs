//! The memory that the ranks of a communicator share, and their barriers in it.

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};

use crate::id::failed;
use crate::results::{Fault, Kind, Stop};
use crate::settings::SETTINGS;

pub(crate) const MOST_RANKS: usize = 64;
/// The bytes that a rank can publish at once.
pub(crate) const BLOCK: usize = 256 << 10;

/// The header of the area, which is zeroed.
#[repr(C)]
struct Header {
    /// The number of ranks, set by the first rank to join.
    ranks: AtomicU32,
    members: [Member; MOST_RANKS],
}

/// The published state of a rank.
#[repr(C, align(64))]
struct Member {
    is_taken: AtomicU32,
    is_joined: AtomicU32,
    is_finalized: AtomicU32,
    /// The number of barriers that the rank has reached.
    meetings: AtomicU64,
    uuid: [AtomicU64; 2],
}

const HEADER_BYTES: usize = size_of::<Header>().next_multiple_of(4096);

/// A rank's mapping of the area, which is unmapped on drop.
pub(crate) struct Area {
    base: NonNull<u8>,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

// SAFETY: the header is atomic, and a rank's block is written only by that rank, between barriers.
unsafe impl Send for Area {}
// SAFETY: as for `Send`.
unsafe impl Sync for Area {}

impl Area {
    /// The size of the area; untouched pages use no memory.
    pub(crate) const BYTES: usize = HEADER_BYTES + MOST_RANKS * BLOCK;

    /// Joins as a rank. Other ranks may join later.
    pub(crate) fn join(file: &OwnedFd, rank: usize, ranks: usize, uuid: [u8; 16]) -> Result<Self, Fault> {
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the system chooses the address, so no existing mapping is overlapped; the file has this length.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), Self::BYTES, access, kind, file, 0) };
        let base = NonNull::new(base.map_err(failed)?.cast()).expect("memory is not at 0");
        let area = Self { base, rank, ranks };

        let own = ranks as u32;
        let all = &area.header().ranks;
        if let Err(other) = all.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire)
            && other != own
        {
            let message = format!("rank {rank} joins with {ranks} ranks, but another with {other}");
            return Err(Fault::invalid(message));
        }
        let member = area.member(rank);
        if member.is_taken.swap(1, Ordering::AcqRel) != 0 {
            return Err(Fault::new(Kind::InvalidUsage, format!("rank {rank} joins twice")));
        }
        for (to, half) in member.uuid.iter().zip(uuid.as_chunks::<8>().0) {
            to.store(u64::from_ne_bytes(*half), Ordering::Relaxed);
        }
        member.is_joined.store(1, Ordering::Release);
        Ok(area)
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with the header, is aligned to pages, and lives as long as `self`.
        unsafe { self.base.cast().as_ref() }
    }

    fn member(&self, rank: usize) -> &Member {
        &self.header().members[rank]
    }

    /// The block that a rank publishes.
    pub(crate) fn block(&self, rank: usize) -> *mut u8 {
        assert!(rank < MOST_RANKS);
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().add(HEADER_BYTES + rank * BLOCK) }
    }

    /// Waits until all ranks have joined, and refuses ranks that share a device unless that is allowed.
    pub(crate) fn gather(&self, is_aborted: &AtomicBool) -> Result<(), Stop> {
        let limit = 6 * SETTINGS.deadline;
        self.until("join", limit, is_aborted, |member| member.is_joined.load(Ordering::Acquire) != 0)?;
        if SETTINGS.shares_devices {
            return Ok(());
        }
        let uuid = |rank: usize| self.member(rank).uuid.each_ref().map(|half| half.load(Ordering::Relaxed));
        let twin = |rank: usize| (0..self.ranks).find(|&other| other != rank && uuid(other) == uuid(rank));
        let (kind, message) = match (twin(self.rank), (0..self.ranks).find_map(twin)) {
            (Some(twin), _) => {
                let rank = self.rank;
                let pair = format!("Duplicate GPU detected : rank {rank} and rank {twin} both on one device");
                (Kind::InvalidUsage, pair)
            }
            (None, Some(_)) => (Kind::RemoteError, "other ranks share a device, and were refused".to_owned()),
            (None, None) => return Ok(()),
        };
        Err(Fault::new(kind, message).into())
    }

    /// A barrier: writes before it are visible to all ranks after it.
    pub(crate) fn meet(&self, is_aborted: &AtomicBool) -> Result<(), Stop> {
        let mine = self.member(self.rank).meetings.fetch_add(1, Ordering::AcqRel) + 1;
        let has_come = |member: &Member| member.meetings.load(Ordering::Acquire) >= mine;
        self.until("take part in a collective", SETTINGS.deadline, is_aborted, has_come)
    }

    /// Announces that this rank has finalised, and waits for the others.
    pub(crate) fn part(&self, is_aborted: &AtomicBool) -> Result<(), Stop> {
        self.member(self.rank).is_finalized.store(1, Ordering::Release);
        let is_done = |member: &Member| member.is_finalized.load(Ordering::Acquire) != 0;
        self.until("finalise", SETTINGS.deadline, is_aborted, is_done)
    }

    /// Exchanges the descriptions of the ranks' calls through their blocks, rank 0's first.
    pub(crate) fn calls(&self, mine: &str, is_aborted: &AtomicBool) -> Result<Vec<String>, Stop> {
        let (block, length) = (self.block(self.rank), u8::try_from(mine.len()).expect("a short text"));
        // SAFETY: the text fits the block, which only this rank writes until the barrier.
        unsafe {
            block.write(length);
            block.add(1).copy_from(mine.as_ptr(), mine.len());
        }
        self.meet(is_aborted)?;
        // SAFETY: a block has a length and as many bytes, and is not written between the barriers.
        let text = |block: *mut u8| unsafe {
            String::from_utf8_lossy(std::slice::from_raw_parts(block.add(1), block.read().into()))
                .into_owned()
        };
        let all = (0..self.ranks).map(|rank| text(self.block(rank))).collect();
        // No rank may overwrite its block before all have read it.
        self.meet(is_aborted)?;
        Ok(all)
    }

    /// Waits until a condition holds for all ranks; fails if the communicator is aborted or the time limit passes.
    fn until(
        &self,
        what: &str,
        limit: Duration,
        is_aborted: &AtomicBool,
        holds: impl Fn(&Member) -> bool,
    ) -> Result<(), Stop> {
        let started = Instant::now();
        for turn in 0.. {
            let Some(late) = (0..self.ranks).find(|&rank| !holds(self.member(rank))) else { return Ok(()) };
            if is_aborted.load(Ordering::Acquire) {
                return Err(Stop::Aborted);
            }
            if started.elapsed() > limit {
                let message = format!("rank {late} did not {what} within {limit:?}");
                return Err(Fault::new(Kind::RemoteError, message).into());
            }
            if turn < 50 { thread::yield_now() } else { thread::sleep(Duration::from_micros(50)) }
        }
        unreachable!("the loop ends only by return")
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and nothing refers to it any more. If unmapping fails, the mapping stays.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), Self::BYTES) };
    }
}
