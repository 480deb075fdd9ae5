//! NCCL's functions as checked calls.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::mem::MaybeUninit;

use unisono_collectives::Operation;

use super::sys::{self, Functions};
use super::version::Version;
use crate::error::{Error, Result};

/// The state of a call that did not fail. On a non-blocking communicator a call may return before it has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    /// NCCL is still working on it. [`Functions::progress`] reports completion. Until then no other function may be called.
    Begun,
}

/// Elements in device memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Elements {
    pub(super) start: *mut u8,
    pub(super) count: usize,
    pub(super) dtype: sys::ncclDataType_t,
}

/// Returns NCCL's function for an operation, if there is one.
pub(crate) fn name(operation: Operation) -> Option<&'static str> {
    match operation {
        Operation::AllReduce => Some("ncclAllReduce"),
        Operation::Reduce { .. } => Some("ncclReduce"),
        Operation::Broadcast { .. } => Some("ncclBroadcast"),
        Operation::ReduceScatter => Some("ncclReduceScatter"),
        Operation::AllGather => Some("ncclAllGather"),
        _ => None,
    }
}

/// A communicator, and the stream to enqueue on.
#[derive(Debug, Clone, Copy)]
pub(super) struct On {
    pub(super) comm: sys::ncclComm_t,
    pub(super) stream: *mut sys::CUstream_st,
}

impl Functions {
    fn check(&self, call: &'static str, code: sys::ncclResult_t) -> Result<Progress> {
        match code {
            sys::ncclSuccess => Ok(Progress::Done),
            sys::ncclInProgress => Ok(Progress::Begun),
            _ => {
                // SAFETY: NCCL does not use the communicator argument; the text is valid as long as the library is loaded.
                let last = text(unsafe { (self.ncclGetLastError)(std::ptr::null_mut()) });
                let meaning = self.error_text(code);
                let text = if last.is_empty() { meaning } else { format!("{meaning} ({last})") };
                Err(Error::Nccl { call, code, text })
            }
        }
    }

    pub(super) fn error_text(&self, code: sys::ncclResult_t) -> String {
        // SAFETY: NCCL has a text for unknown codes too; texts are valid as long as the library is loaded.
        text(unsafe { (self.ncclGetErrorString)(code) })
    }

    pub(super) fn version(&self) -> Result<Version> {
        let mut code = 0;
        // SAFETY: may be called at any time; it writes an integer to the address, which is valid during the call.
        self.check("ncclGetVersion", unsafe { (self.ncclGetVersion)(&raw mut code) })?;
        Ok(Version::from_code(code.unsigned_abs()))
    }

    pub(super) fn unique_id(&self) -> Result<sys::ncclUniqueId> {
        let mut id = MaybeUninit::uninit();
        // SAFETY: may be called at any time; it writes an id to the address, which is valid during the call.
        self.check("ncclGetUniqueId", unsafe { (self.ncclGetUniqueId)(id.as_mut_ptr()) })?;
        // SAFETY: the call succeeded, so NCCL has written the id.
        Ok(unsafe { id.assume_init() })
    }

    /// Starts to create a non-blocking communicator, for the thread's current context.
    pub(super) fn begin(&self, ranks: c_int, rank: c_int, id: sys::ncclUniqueId) -> Result<sys::ncclComm_t> {
        let mut config = sys::ncclConfig_t {
            size: size_of::<sys::ncclConfig_t>(),
            // NCCL rejects any other number.
            magic: 0xcafe_beef,
            version: sys::NCCL_VERSION_CODE,
            blocking: 0,
        };
        let mut comm = std::ptr::null_mut();
        // SAFETY: the addresses are valid during the call, in which NCCL writes the handle and copies the id and the
        // settings.
        let code = unsafe { (self.ncclCommInitRankConfig)(&raw mut comm, ranks, id, rank, &raw mut config) };
        let begun = self.check("ncclCommInitRankConfig", code);
        if begun.is_err() && !comm.is_null() {
            // SAFETY: NCCL has created the communicator for this thread's context, and it is not used again.
            let _ = unsafe { self.abort(comm) };
        }
        begun.map(|_| comm)
    }
}

/// # Safety
/// For all of these functions, the communicator was created, was not destroyed or aborted, and is used by no other thread at
/// the same time; its context is current. A stream belongs to that context; memory is device memory of that context, is
/// valid, and has no other use until the stream has completed the enqueued work.
impl Functions {
    /// Returns the progress of the last call. The error is that of the communicator.
    pub(super) unsafe fn progress(&self, comm: sys::ncclComm_t) -> Result<Progress> {
        let mut state = sys::ncclSuccess;
        // SAFETY: as the caller promises; the state is valid during the call.
        let code = unsafe { (self.ncclCommGetAsyncError)(comm, &raw mut state) };
        self.check("ncclCommGetAsyncError", code)?;
        self.check("ncclCommGetAsyncError", state)
    }

    /// Returns the number of ranks, this rank, and its device number.
    pub(super) unsafe fn describe(&self, comm: sys::ncclComm_t) -> Result<[c_int; 3]> {
        let [mut ranks, mut rank, mut device] = [-1; 3];
        // SAFETY: as the caller promises; the integers are valid during the calls.
        unsafe {
            self.check("ncclCommCount", (self.ncclCommCount)(comm, &raw mut ranks))?;
            self.check("ncclCommUserRank", (self.ncclCommUserRank)(comm, &raw mut rank))?;
            self.check("ncclCommCuDevice", (self.ncclCommCuDevice)(comm, &raw mut device))?;
        }
        Ok([ranks, rank, device])
    }

    /// Starts to finalise the communicator. All ranks call it.
    pub(super) unsafe fn finalize(&self, comm: sys::ncclComm_t) -> Result<Progress> {
        // SAFETY: as the caller promises.
        self.check("ncclCommFinalize", unsafe { (self.ncclCommFinalize)(comm) })
    }

    /// Frees a finalised communicator, which must not be used afterwards.
    pub(super) unsafe fn destroy(&self, comm: sys::ncclComm_t) -> Result<Progress> {
        // SAFETY: as the caller promises.
        self.check("ncclCommDestroy", unsafe { (self.ncclCommDestroy)(comm) })
    }

    /// Cancels calls in flight, and frees the communicator, which must not be used afterwards.
    pub(super) unsafe fn abort(&self, comm: sys::ncclComm_t) -> Result<Progress> {
        // SAFETY: as the caller promises.
        self.check("ncclCommAbort", unsafe { (self.ncclCommAbort)(comm) })
    }

    /// Carries out a collective in place on all elements. Collectives with a part for each rank also use this rank's `own`
    /// elements, the same number on each rank.
    pub(super) unsafe fn collective(
        &self,
        operation: Operation,
        (all, own): (Elements, Elements),
        (op, root): (sys::ncclRedOp_t, c_int),
        On { comm, stream }: On,
    ) -> Result<Progress> {
        let (data, count, dtype) = (all.start.cast::<c_void>(), all.count as c_ulong, all.dtype);
        let (mine, part) = (own.start.cast::<c_void>(), own.count as c_ulong);
        // SAFETY: as the caller promises.
        let code = unsafe {
            match operation {
                Operation::AllReduce => (self.ncclAllReduce)(data, data, count, dtype, op, comm, stream),
                Operation::Reduce { .. } => {
                    (self.ncclReduce)(data, data, count, dtype, op, root, comm, stream)
                }
                Operation::Broadcast { .. } => {
                    (self.ncclBroadcast)(data, data, count, dtype, root, comm, stream)
                }
                Operation::ReduceScatter => {
                    (self.ncclReduceScatter)(data, mine, part, dtype, op, comm, stream)
                }
                Operation::AllGather => (self.ncclAllGather)(mine, data, part, dtype, comm, stream),
                other => unreachable!("NCCL has no {other}"),
            }
        };
        self.check(name(operation).expect("NCCL has it"), code)
    }

    /// Groups calls, which NCCL then starts together.
    pub(super) unsafe fn group(&self, calls: impl FnOnce() -> Result<()>) -> Result<Progress> {
        // SAFETY: as the caller promises.
        self.check("ncclGroupStart", unsafe { (self.ncclGroupStart)() })?;
        let inside = calls();
        // The group is ended even if a call failed; otherwise the thread would stay in it. SAFETY: as the caller promises; a
        // group was started.
        let end = self.check("ncclGroupEnd", unsafe { (self.ncclGroupEnd)() });
        inside.and(end)
    }
}

fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: NCCL's texts are zero-terminated, and valid as long as the library is loaded.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

#[cfg(test)]
mod tests;
