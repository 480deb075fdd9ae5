//! The access of a rank to the memory of the ranks that share its board.

use crate::error::Result;
use crate::memory::Location;
use crate::transport::Target;

mod processes;

pub(in crate::transport) use processes::{Processes, can_read, is_kernel_fast};

/// The bytes that the kernel copies at a time for further work: they stay in the core's cache.
pub(super) const KERNEL_BLOCK_BYTES: usize = 128 << 10;

/// The start of a rank's range in another rank's buffer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start {
    /// In memory mapped here: the array itself, or (`is_copy`) a copy lent in its place.
    Mapped { start: *mut u8, is_copy: bool },
    /// In memory that only the kernel can access, at this address.
    Elsewhere(u64),
}

/// The access of a rank to the memory of the others.
#[derive(Debug)]
pub(in crate::transport) enum Reach {
    /// They are threads of the same process: an address suffices.
    Threads,
    /// They are processes: registered memory is mapped, and other memory copied by the kernel.
    Processes(Processes),
}

impl Reach {
    /// Returns the access with mappings of its own.
    pub(super) fn again(&self) -> Self {
        match self {
            Self::Threads => Self::Threads,
            Self::Processes(processes) => Self::Processes(processes.again()),
        }
    }

    /// Returns whether the kernel copies from and to memory that is not registered.
    pub(super) fn can_ask_kernel(&self) -> bool {
        match self {
            Self::Threads => false,
            Self::Processes(processes) => processes.can_ask_kernel(),
        }
    }

    /// Consumes `size_bytes` bytes that another rank lends.
    pub(super) fn accept(
        &mut self,
        from: usize,
        location: Location,
        size_bytes: usize,
        target: &mut Target<'_>,
    ) -> Result<()> {
        if let Self::Processes(processes) = self
            && location.segment == Location::ADDRESS
        {
            return processes.accept(from, location.offset, size_bytes, target);
        }
        let bytes = self.pointer(from, location, size_bytes)?;
        // SAFETY: the sender lends these bytes until the message is taken, and does not change them meanwhile.
        target.accept(0, unsafe { std::slice::from_raw_parts(bytes, size_bytes) });
        Ok(())
    }

    /// Returns the address of `size_bytes` bytes that another rank lends, possibly of a copy.
    pub(super) fn start(
        &mut self,
        of: usize,
        location: Location,
        size_bytes: usize,
        is_copy: bool,
    ) -> Result<Start> {
        match self {
            Self::Processes(_) if location.segment == Location::ADDRESS => {
                Ok(Start::Elsewhere(location.offset))
            }
            _ => Ok(Start::Mapped { start: self.pointer(of, location, size_bytes)?, is_copy }),
        }
    }

    /// Copies from an address of another rank by the kernel.
    pub(super) fn fetch(&self, of: usize, address: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Threads => unreachable!("threads reach all memory: {of}, {address}, {}", into.len()),
            Self::Processes(processes) => processes.fetch(of, address, into),
        }
    }

    /// Copies to an address of another rank by the kernel.
    pub(super) fn store(&self, of: usize, address: u64, from: &[u8]) -> Result<()> {
        match self {
            Self::Threads => unreachable!("threads reach all memory: {of}, {address}, {}", from.len()),
            Self::Processes(processes) => processes.store(of, address, from),
        }
    }

    /// Returns the address here of `size_bytes` bytes of another rank, valid while they are lent.
    fn pointer(&mut self, of: usize, location: Location, size_bytes: usize) -> Result<*mut u8> {
        match self {
            Self::Threads => {
                let _ = (of, size_bytes);
                Ok(location.offset as *mut u8)
            }
            Self::Processes(processes) => processes.pointer(of, location, size_bytes),
        }
    }
}
