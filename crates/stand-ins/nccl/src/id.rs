//! Unique ids, which tell where a communicator's shared memory is.
//!
//! The memory has no name in any folder. The process that creates the id keeps it open, and the others open it through
//! `/proc`; so nothing is left behind, however processes end.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::Mutex;

use rustix::fs::{MemfdFlags, Mode, OFlags};

use crate::area::Area;
use crate::results::{Fault, Kind, Out, Status, give, status};

/// NCCL's `ncclUniqueId`: 128 bytes, which C aligns as bytes.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct UniqueId {
    magic: [u8; 8],
    /// The inode of the memory.
    number: u64,
    process: u32,
    file: RawFd,
    _unused: [u8; 104],
}

const MAGIC: [u8; 8] = *b"stand-in";

/// The memory of the ids that this process has created, until all ranks have mapped it.
static MADE: Mutex<BTreeMap<u64, OwnedFd>> = Mutex::new(BTreeMap::new());

impl UniqueId {
    fn make() -> Result<Self, Fault> {
        let file = rustix::fs::memfd_create("unisono-stand-in-nccl", MemfdFlags::CLOEXEC).map_err(failed)?;
        rustix::fs::ftruncate(&file, Area::BYTES as u64).map_err(failed)?;
        let number = rustix::fs::fstat(&file).map_err(failed)?.st_ino;
        let (process, _unused) = (std::process::id(), [0; 104]);
        let id = Self { magic: MAGIC, number, process, file: file.as_raw_fd(), _unused };
        MADE.lock().unwrap().insert(number, file);
        Ok(id)
    }

    pub(crate) fn open(&self) -> Result<OwnedFd, Fault> {
        let Self { magic, number, process, file, .. } = *self;
        if magic != MAGIC {
            return Err(Fault::invalid("the unique id was not made by ncclGetUniqueId"));
        }
        let path = format!("/proc/{process}/fd/{file}");
        let gone = || {
            let message =
                "the unique id is no longer valid: it serves one communicator, whose root must stay alive";
            Fault::new(Kind::SystemError, message)
        };
        // The descriptor may be another file by now, and opening some files blocks.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|_| gone())?;
        let found = rustix::fs::fstat(&file).map_err(|_| gone())?;
        let is_same = found.st_ino == number && found.st_size == Area::BYTES as i64;
        if is_same { Ok(file) } else { Err(gone()) }
    }

    /// Releases the memory once all ranks have mapped it, or never will.
    pub(crate) fn forget(&self) {
        MADE.lock().unwrap().remove(&{ self.number });
    }
}

pub(crate) fn failed(error: rustix::io::Errno) -> Fault {
    Fault::new(Kind::SystemError, format!("no shared memory for a communicator: {error}"))
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetUniqueId(id: Out<'_, UniqueId>) -> Status {
    status(UniqueId::make().and_then(|made| give(id, made)))
}
