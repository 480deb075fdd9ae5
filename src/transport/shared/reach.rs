//! The access of a rank to the memory of the ranks that share its board.

use crate::error::{Error, Result};
use crate::memory::Location;
use crate::status::{FirstFailure, StatusBoard};
use crate::transport::{Failure, Header, Target};

mod processes;

pub(in crate::transport) use processes::{Processes, can_read, is_kernel_fast};

/// The number of bytes that the kernel copies at a time for further work, so that they stay in the core's cache.
pub(super) const KERNEL_BLOCK_BYTES: usize = 128 << 10;

/// Returns the failure of an access to memory of other ranks. The system refuses it if their process has ended. That is then the cause, and not
/// this rank.
#[cold]
pub(super) fn access_failure(error: Error, status: &StatusBoard) -> Failure {
    if matches!(error, Error::Memory { .. }) {
        status.check_peers();
        if let Some(FirstFailure { first: by, cause, .. }) = status.failure() {
            return Failure::Error(Error::Aborted { rank: status.rank(), by, cause });
        }
    }
    Failure::Error(error)
}

/// The start of a rank's range in another rank's buffer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start {
    /// In memory mapped here: the array itself, or (`is_copy`) a copy lent in its place.
    Mapped { start: *mut u8, is_copy: bool },
    /// In memory that only the kernel can access, at this address.
    Elsewhere(u64),
}

/// The access of a rank to the memory of the others. Registered memory of processes is mapped, and the kernel copies their other memory.
/// `None` stands for threads of the same process, for which an address suffices.
#[derive(Debug)]
pub(in crate::transport) struct Reach(pub(in crate::transport) Option<Processes>);

impl Reach {
    /// Returns the access with separate mappings.
    pub(super) fn again(&self) -> Self {
        let again = |other: &Processes| Processes::new(other.process_ids.clone(), other.by_kernel);
        Self(self.0.as_ref().map(again))
    }

    /// Returns whether the kernel copies from and to memory that is not registered; `None` if it is not needed.
    pub(in crate::transport) fn kernel_copies(&self) -> Option<bool> {
        self.0.as_ref().map(|processes| processes.by_kernel)
    }

    /// Returns whether the kernel copies memory of this call that is not registered. What is reduced passes through shared memory: the sender's core
    /// stages pieces of a message while the receiver's reduces others (on AMD EPYC, Zen 5, in 0.7 of the time), and a single pass works on copies in
    /// the caches.
    pub(super) fn copies_by_kernel(&self, header: &Header) -> bool {
        self.kernel_copies() == Some(true) && !header.reduces()
    }

    /// Consumes `size_bytes` bytes that another rank lends.
    pub(super) fn accept(
        &mut self,
        from: usize,
        location: Location,
        size_bytes: usize,
        target: &mut Target<'_>,
    ) -> Result<()> {
        match self.start(from, location, size_bytes, false)? {
            Start::Mapped { start, .. } => {
                // SAFETY: the sender lends these bytes until the message is released, and does not change them before.
                target.accept(0, unsafe { std::slice::from_raw_parts(start, size_bytes) });
                Ok(())
            }
            Start::Elsewhere(address) => {
                let Target::Place(place) = target else { unreachable!("messages to be reduced are staged") };
                self.by_kernel().fetch(from, address, place)
            }
        }
    }

    /// Returns the address of `size_bytes` bytes that another rank lends, possibly of a copy. It is valid while they are lent.
    pub(super) fn start(
        &mut self,
        of: usize,
        location: Location,
        size_bytes: usize,
        is_copy: bool,
    ) -> Result<Start> {
        let start = match &mut self.0 {
            None => location.offset as *mut u8,
            Some(_) if location.segment == Location::ADDRESS => return Ok(Start::Elsewhere(location.offset)),
            Some(processes) => processes.pointer(of, location, size_bytes)?,
        };
        Ok(Start::Mapped { start, is_copy })
    }

    /// Returns the processes whose memory only the kernel can access.
    pub(super) fn by_kernel(&self) -> &Processes {
        self.0.as_ref().expect("threads access all memory")
    }
}
