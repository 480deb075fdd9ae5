//! Unique ids, which tell where a communicator's shared memory is.
//!
//! The memory has no name in any folder. The process that creates the id keeps it open, and the others open it through
//! `/proc`; so nothing is left behind, however processes end.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{MemfdFlags, Mode, OFlags};

use crate::area::Area;
use crate::results::{Fault, Kind, Status, status};

/// NCCL's `ncclUniqueId`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId([u8; 128]);

const MAGIC: [u8; 8] = *b"stand-in";

/// The memory of the ids that this process has created, until all ranks have mapped it.
static MADE: Mutex<BTreeMap<u64, OwnedFd>> = Mutex::new(BTreeMap::new());

impl UniqueId {
    fn make() -> Result<Self, Fault> {
        let file = rustix::fs::memfd_create("unisono-stand-in-nccl", MemfdFlags::CLOEXEC).map_err(failed)?;
        let number = new_number();
        rustix::fs::ftruncate(&file, Area::BYTES as u64).map_err(failed)?;
        rustix::io::pwrite(&file, &number.to_ne_bytes(), 0).map_err(failed)?;

        let mut id = [0; 128];
        id[..8].copy_from_slice(&MAGIC);
        id[8..16].copy_from_slice(&number.to_ne_bytes());
        id[16..20].copy_from_slice(&std::process::id().to_ne_bytes());
        id[20..24].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
        MADE.lock().unwrap().insert(number, file);
        Ok(Self(id))
    }

    fn number(&self) -> u64 {
        u64::from_ne_bytes(self.0[8..16].try_into().expect("eight bytes"))
    }

    /// Opens the shared memory of this id.
    pub(crate) fn open(&self) -> Result<OwnedFd, Fault> {
        if self.0[..8] != MAGIC {
            return Err(Fault::new(Kind::InvalidArgument, "the unique id was not made by ncclGetUniqueId"));
        }
        let part = |at: usize| u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("four bytes"));
        let path = format!("/proc/{}/fd/{}", part(16), part(20));
        let gone = || {
            let message =
                "the unique id is no longer valid: it serves one communicator, whose root must stay alive";
            Fault::new(Kind::SystemError, message)
        };
        // The descriptor may be another file by now, and opening some files blocks.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|_| gone())?;
        let mut number = [0; 8];
        let read = rustix::io::pread(&file, &mut number, 0).map_err(|_| gone())?;
        if read != 8 || u64::from_ne_bytes(number) != self.number() {
            return Err(gone());
        }
        Ok(file)
    }

    /// Releases the memory once all ranks have mapped it, or never will.
    pub(crate) fn forget(&self) {
        MADE.lock().unwrap().remove(&self.number());
    }
}

/// A number unique among the ids on this machine.
fn new_number() -> u64 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let here = u64::from(std::process::id()) << 32 | u64::from(COUNT.fetch_add(1, Ordering::Relaxed));
    now.rotate_left(24) ^ here
}

/// Converts a system error.
pub(crate) fn failed(error: rustix::io::Errno) -> Fault {
    Fault::new(Kind::SystemError, format!("no shared memory for a communicator: {error}"))
}

/// NCCL's `ncclGetUniqueId`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Status {
    // SAFETY: the caller of this C function passes an address that is null or valid for the result.
    status(UniqueId::make().and_then(|made| unsafe { crate::results::give(id, made) }))
}
