//! The memory that the ranks of a communicator share, and how they meet in it.

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};

use crate::id::failed;
use crate::results::{Fault, Kind, Stop};
use crate::settings::SETTINGS;

/// The most ranks of a communicator.
pub(crate) const MOST_RANKS: usize = 64;
/// What a rank can show the others at once, in bytes.
pub(crate) const BLOCK: usize = 256 << 10;

/// Begins the area, as zeros but for the number.
#[repr(C)]
struct Header {
    /// The unique id's, which is looked at through the file.
    number: u64,
    /// As the first to join says.
    ranks: AtomicU32,
    members: [Member; MOST_RANKS],
}

/// What a rank says of itself.
#[repr(C, align(64))]
struct Member {
    is_taken: AtomicU32,
    is_joined: AtomicU32,
    is_finalized: AtomicU32,
    /// How many meetings it has come to.
    meetings: AtomicU64,
    uuid: [AtomicU64; 2],
    /// The collective that it is in.
    call: [AtomicU64; 3],
}

const HEADER_BYTES: usize = size_of::<Header>().next_multiple_of(4096);

/// A rank's view of the area, which is unmapped when this is dropped.
#[derive(Debug)]
pub(crate) struct Area {
    base: NonNull<u8>,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

// SAFETY: the header is atomic, and a rank's block is written by that rank, between meetings.
unsafe impl Send for Area {}
// SAFETY: as for `Send`.
unsafe impl Sync for Area {}

impl Area {
    /// All of it; pages that are not touched take nothing.
    pub(crate) const BYTES: usize = HEADER_BYTES + MOST_RANKS * BLOCK;

    /// Takes a rank's place. The others may not be there yet.
    pub(crate) fn join(file: &OwnedFd, rank: usize, ranks: usize, uuid: [u8; 16]) -> Result<Self, Fault> {
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the system chooses the place; the file is as long.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), Self::BYTES, access, kind, file, 0) };
        let base = NonNull::new(base.map_err(failed)?.cast()).expect("memory is not at 0");
        let area = Self { base, rank, ranks };

        let said = ranks as u32;
        let all = &area.header().ranks;
        if let Err(other) = all.compare_exchange(0, said, Ordering::AcqRel, Ordering::Acquire)
            && other != said
        {
            let message = format!("rank {rank} says that there are {ranks} ranks, and another says {other}");
            return Err(Fault::new(Kind::InvalidArgument, message));
        }
        let member = area.member(rank);
        if member.is_taken.swap(1, Ordering::AcqRel) != 0 {
            return Err(Fault::new(Kind::InvalidUsage, format!("two say that they are rank {rank}")));
        }
        for (to, half) in member.uuid.iter().zip(uuid.as_chunks::<8>().0) {
            to.store(u64::from_ne_bytes(*half), Ordering::Relaxed);
        }
        member.is_joined.store(1, Ordering::Release);
        Ok(area)
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with it, is aligned to pages, and lives as long as this.
        unsafe { self.base.cast().as_ref() }
    }

    fn member(&self, rank: usize) -> &Member {
        &self.header().members[rank]
    }

    /// What a rank shows the others.
    pub(crate) fn block(&self, rank: usize) -> *mut u8 {
        assert!(rank < MOST_RANKS);
        // SAFETY: inside of the mapping.
        unsafe { self.base.as_ptr().add(HEADER_BYTES + rank * BLOCK) }
    }

    /// Until all ranks have joined, and no two of them are on one device if they must not.
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

    /// Until all ranks have come to as many meetings as this one. What each wrote before, all see after.
    pub(crate) fn meet(&self, is_aborted: &AtomicBool) -> Result<(), Stop> {
        let mine = self.member(self.rank).meetings.fetch_add(1, Ordering::AcqRel) + 1;
        let has_come = |member: &Member| member.meetings.load(Ordering::Acquire) >= mine;
        self.until("take part in a collective", SETTINGS.deadline, is_aborted, has_come)
    }

    /// Says that this rank has finalised, and waits for the others to.
    pub(crate) fn part(&self, is_aborted: &AtomicBool) -> Result<(), Stop> {
        self.member(self.rank).is_finalized.store(1, Ordering::Release);
        let is_done = |member: &Member| member.is_finalized.load(Ordering::Acquire) != 0;
        self.until("finalise", SETTINGS.deadline, is_aborted, is_done)
    }

    /// What each rank says that it calls, rank 0 first.
    pub(crate) fn calls(&self, mine: [u64; 3], is_aborted: &AtomicBool) -> Result<Vec<[u64; 3]>, Stop> {
        for (to, word) in self.member(self.rank).call.iter().zip(mine) {
            to.store(word, Ordering::Relaxed);
        }
        self.meet(is_aborted)?;
        let said = |rank: usize| self.member(rank).call.each_ref().map(|word| word.load(Ordering::Relaxed));
        let all = (0..self.ranks).map(said).collect();
        // Only then may anybody say something else.
        self.meet(is_aborted)?;
        Ok(all)
    }

    /// Until this holds of all ranks, this communicator is aborted, or the time is over.
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
        unreachable!("the loop has no end of its own")
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and nobody holds it any more.
        // To fail would be to leave it mapped: nothing to be done about it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), Self::BYTES) };
    }
}
