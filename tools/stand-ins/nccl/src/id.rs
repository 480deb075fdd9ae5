//! Unique ids: where the shared memory of a communicator is.
//!
//! It has no name in any folder. The process that makes the id holds it open, and the others open it through
//! `/proc`; so nothing is left behind, however anybody ends.

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

/// The memory of ids that this process has made, until all ranks have it.
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

    /// The shared memory that this id is of.
    pub(crate) fn open(&self) -> Result<OwnedFd, Fault> {
        if self.0[..8] != MAGIC {
            return Err(Fault::new(Kind::InvalidArgument, "the unique id was not made by ncclGetUniqueId"));
        }
        let part = |at: usize| u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("four bytes"));
        let path = format!("/proc/{}/fd/{}", part(16), part(20));
        let gone = || {
            let message =
                "the unique id is no longer one: it serves one communicator, whose root must live on";
            Fault::new(Kind::SystemError, message)
        };
        // What is there may be another file by now, and one that opening would wait for.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|_| gone())?;
        let mut number = [0; 8];
        let read = rustix::io::pread(&file, &mut number, 0).map_err(|_| gone())?;
        if read != 8 || u64::from_ne_bytes(number) != self.number() {
            return Err(gone());
        }
        Ok(file)
    }

    /// All ranks have the memory, or will never have it.
    pub(crate) fn forget(&self) {
        MADE.lock().unwrap().remove(&self.number());
    }
}

/// Not the number of any other id on this machine.
fn new_number() -> u64 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let here = u64::from(std::process::id()) << 32 | u64::from(COUNT.fetch_add(1, Ordering::Relaxed));
    now.rotate_left(24) ^ here
}

/// What the system's error means here.
pub(crate) fn failed(error: rustix::io::Errno) -> Fault {
    Fault::new(Kind::SystemError, format!("no shared memory for a communicator: {error}"))
}

/// NCCL's `ncclGetUniqueId`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Status {
    // SAFETY: as the caller promises.
    status(UniqueId::make().and_then(|made| unsafe { crate::results::give(id, made) }))
}
