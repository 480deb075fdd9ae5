//! Copies between the host and devices, and on a device.

use std::ffi::c_uchar;

use crate::errors::{Failure, Status, status};
use crate::memory;
use crate::stream::{self, Operation};

enum Source {
    /// Device or pinned memory, read when the copy is executed.
    Address(u64),
    /// Bytes of pageable memory, copied when the operation was enqueued.
    Taken(Vec<u8>),
}

pub(crate) struct Copy {
    from: Source,
    to: u64,
    pub(crate) bytes: usize,
    /// Pageable memory; the caller waits until the copy is done, so `to` stays valid.
    to_pageable: bool,
}

impl Copy {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.bytes == 0 {
            return Ok(());
        }
        let found;
        let from = match &self.from {
            Source::Address(address) => {
                found = memory::find(*address, self.bytes)?;
                found.pointer.cast_const()
            }
            Source::Taken(bytes) => bytes.as_ptr(),
        };
        if self.to_pageable {
            // SAFETY: the source allocation is held; the caller has promised that `to` is large enough, and waits for this
            // copy.
            unsafe { (self.to as *mut u8).copy_from(from, self.bytes) };
        } else {
            let to = memory::find(self.to, self.bytes)?;
            // SAFETY: both allocations are held, and the ranges lie within them. They may overlap.
            unsafe { to.pointer.copy_from(from, self.bytes) };
        }
        Ok(())
    }
}

/// Enqueues a copy between any two addresses. Waits until it is done if the caller requests it, or if the destination is
/// pageable memory.
///
/// # Safety
/// An address that is neither device nor pinned memory must be valid host memory of this many bytes.
unsafe fn copy(to: u64, from: u64, bytes: usize, stream: usize, waits: bool) -> Result<(), Failure> {
    let stream = stream::usable(stream)?;
    let to_pageable = !memory::is_ours(to);
    if bytes > 0 && (to == 0 || from == 0) {
        return Err(Failure::INVALID_VALUE);
    }
    let from = if memory::is_ours(from) || bytes == 0 {
        Source::Address(from)
    } else {
        // SAFETY: as the caller promises.
        Source::Taken(unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.to_vec())
    };
    stream.enqueue(Operation::Copy(Copy { from, to, bytes, to_pageable }));
    if waits || to_pageable {
        stream.synchronize();
        stream.context.check()?;
    }
    Ok(())
}

/// In the default stream, like all functions without a stream argument.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) -> Status {
    // SAFETY: the caller of this C function passes valid addresses of this many bytes.
    status(unsafe { copy(to, from, bytes, 0, true) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Status {
    // SAFETY: as in `cuMemcpyHtoD_v2`.
    status(unsafe { copy(to, from, bytes, stream, false) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) -> Status {
    // SAFETY: as in `cuMemcpyHtoD_v2`.
    status(unsafe { copy(to, from, bytes, 0, true) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Status {
    // SAFETY: as in `cuMemcpyHtoD_v2`.
    status(unsafe { copy(to, from, bytes, stream, false) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Status {
    // SAFETY: as in `cuMemcpyHtoD_v2`.
    status(unsafe { copy(to, from, bytes, stream, false) })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: u64, byte: c_uchar, bytes: usize, stream: usize) -> Status {
    status(stream::usable(stream).map(|stream| stream.enqueue(Operation::Fill { address, byte, bytes })))
}
