//! NCCL's functions as checked calls.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::mem::MaybeUninit;

use super::sys::{self, Functions};
use super::version::Version;
use crate::error::{Error, Result};

/// What a call that did not fail has come to. Of a communicator that does not block, a call may return early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It is done.
    Done,
    /// NCCL is still at it; [`Functions::progress`] says when it is done, and until then nothing else may be called.
    Begun,
}

/// Elements in a device's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Elements {
    pub(super) start: *mut u8,
    pub(super) count: usize,
    pub(super) dtype: sys::ncclDataType_t,
}

/// The communicator that does something, and the stream that it is done on.
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
            _ => Err(Error::Nccl { call, code, text: self.failure_text(code) }),
        }
    }

    /// The text of a code, and what NCCL noted last, which says more where there is something.
    fn failure_text(&self, code: sys::ncclResult_t) -> String {
        // SAFETY: NCCL makes no use of the communicator; the text lives as long as the library.
        let last = text(unsafe { (self.ncclGetLastError)(std::ptr::null_mut()) });
        let meaning = self.error_text(code);
        if last.is_empty() { meaning } else { format!("{meaning} ({last})") }
    }

    /// What NCCL says of a code.
    pub(super) fn error_text(&self, code: sys::ncclResult_t) -> String {
        // SAFETY: for a code that it does not know NCCL has a text too; texts live as long as the library.
        text(unsafe { (self.ncclGetErrorString)(code) })
    }

    pub(super) fn version(&self) -> Result<Version> {
        let mut code = 0;
        // SAFETY: may be called at any time; the number lives to the end of the call.
        self.check("ncclGetVersion", unsafe { (self.ncclGetVersion)(&raw mut code) })?;
        Ok(Version::from_code(code.unsigned_abs()))
    }

    pub(super) fn unique_id(&self) -> Result<sys::ncclUniqueId> {
        let mut id = MaybeUninit::uninit();
        // SAFETY: may be called at any time; the id is written to by the end of the call.
        self.check("ncclGetUniqueId", unsafe { (self.ncclGetUniqueId)(id.as_mut_ptr()) })?;
        // SAFETY: the call succeeded, so it has written the id.
        Ok(unsafe { id.assume_init() })
    }

    /// Begins to make a communicator that does not block, for the current context of the thread.
    pub(super) fn begin(&self, ranks: c_int, rank: c_int, id: sys::ncclUniqueId) -> Result<sys::ncclComm_t> {
        let mut config = sys::ncclConfig_t { blocking: 0, ..sys::UNDEFINED_CONFIG };
        let mut comm = std::ptr::null_mut();
        // SAFETY: NCCL writes the handle, and copies the id and the settings, before it returns.
        let code = unsafe { (self.ncclCommInitRankConfig)(&raw mut comm, ranks, id, rank, &raw mut config) };
        self.check("ncclCommInitRankConfig", code)?;
        Ok(comm)
    }
}

/// # Safety
/// For all of these the communicator is one that was begun, that was not destroyed or aborted, and that no other
/// thread uses at the same time; its context is the current one. Where a stream is named it is one of that context, and
/// memory is the device's, valid, and in no other use until the stream has done what is enqueued.
impl Functions {
    /// How far the last call that only began has come. The error is that of the communicator.
    pub(super) unsafe fn progress(&self, comm: sys::ncclComm_t) -> Result<Progress> {
        let mut state = sys::ncclSuccess;
        // SAFETY: as the caller says; the state lives to the end of the call.
        let code = unsafe { (self.ncclCommGetAsyncError)(comm, &raw mut state) };
        self.check("ncclCommGetAsyncError", code)?;
        self.check("ncclCommGetAsyncError", state)
    }

    /// How many ranks there are, which of them this is, and the number of its device.
    pub(super) unsafe fn describe(&self, comm: sys::ncclComm_t) -> Result<[c_int; 3]> {
        let [mut ranks, mut rank, mut device] = [-1; 3];
        // SAFETY: as the caller says; the numbers live to the end of the calls.
        unsafe {
            self.check("ncclCommCount", (self.ncclCommCount)(comm, &raw mut ranks))?;
            self.check("ncclCommUserRank", (self.ncclCommUserRank)(comm, &raw mut rank))?;
            self.check("ncclCommCuDevice", (self.ncclCommCuDevice)(comm, &raw mut device))?;
        }
        Ok([ranks, rank, device])
    }

    /// Begins to end what is in flight. All ranks do it.
    pub(super) unsafe fn finalize(&self, comm: sys::ncclComm_t) -> Result<Progress> {
        // SAFETY: as the caller says.
        self.check("ncclCommFinalize", unsafe { (self.ncclCommFinalize)(comm) })
    }

    /// Frees a communicator that is finalised. It is not used again.
    pub(super) unsafe fn destroy(&self, comm: sys::ncclComm_t) -> Result<Progress> {
        // SAFETY: as the caller says.
        self.check("ncclCommDestroy", unsafe { (self.ncclCommDestroy)(comm) })
    }

    /// Stops what is in flight, and frees the communicator. It is not used again.
    pub(super) unsafe fn abort(&self, comm: sys::ncclComm_t) -> Result<Progress> {
        // SAFETY: as the caller says.
        self.check("ncclCommAbort", unsafe { (self.ncclCommAbort)(comm) })
    }

    /// Reduces elements in place.
    pub(super) unsafe fn all_reduce(
        &self,
        Elements { start, count, dtype }: Elements,
        op: sys::ncclRedOp_t,
        On { comm, stream }: On,
    ) -> Result<Progress> {
        let (data, count) = (start.cast::<c_void>(), count as c_ulong);
        // SAFETY: as the caller says.
        let code = unsafe { (self.ncclAllReduce)(data, data, count, dtype, op, comm, stream) };
        self.check("ncclAllReduce", code)
    }

    /// Reduces elements in place, on the root.
    pub(super) unsafe fn reduce(
        &self,
        Elements { start, count, dtype }: Elements,
        op: sys::ncclRedOp_t,
        root: c_int,
        On { comm, stream }: On,
    ) -> Result<Progress> {
        let (data, count) = (start.cast::<c_void>(), count as c_ulong);
        // SAFETY: as the caller says.
        let code = unsafe { (self.ncclReduce)(data, data, count, dtype, op, root, comm, stream) };
        self.check("ncclReduce", code)
    }

    /// Gives the root's elements to all.
    pub(super) unsafe fn broadcast(
        &self,
        Elements { start, count, dtype }: Elements,
        root: c_int,
        On { comm, stream }: On,
    ) -> Result<Progress> {
        let (data, count) = (start.cast::<c_void>(), count as c_ulong);
        // SAFETY: as the caller says.
        let code = unsafe { (self.ncclBroadcast)(data, data, count, dtype, root, comm, stream) };
        self.check("ncclBroadcast", code)
    }

    /// Reduces an array that begins at `whole`, and of which each rank gets a part as long as this one.
    pub(super) unsafe fn reduce_scatter(
        &self,
        whole: *mut u8,
        Elements { start, count, dtype }: Elements,
        op: sys::ncclRedOp_t,
        On { comm, stream }: On,
    ) -> Result<Progress> {
        let (from, to, count) = (whole.cast(), start.cast(), count as c_ulong);
        // SAFETY: as the caller says.
        let code = unsafe { (self.ncclReduceScatter)(from, to, count, dtype, op, comm, stream) };
        self.check("ncclReduceScatter", code)
    }

    /// Gives to all an array that begins at `whole`, and of which each rank has a part as long as this one.
    pub(super) unsafe fn all_gather(
        &self,
        Elements { start, count, dtype }: Elements,
        whole: *mut u8,
        On { comm, stream }: On,
    ) -> Result<Progress> {
        let (from, to, count) = (start.cast(), whole.cast(), count as c_ulong);
        // SAFETY: as the caller says.
        let code = unsafe { (self.ncclAllGather)(from, to, count, dtype, comm, stream) };
        self.check("ncclAllGather", code)
    }

    /// Makes one call of several, of which none waits for another.
    pub(super) unsafe fn group(&self, calls: impl FnOnce() -> Result<()>) -> Result<Progress> {
        // SAFETY: as the caller says.
        self.check("ncclGroupStart", unsafe { (self.ncclGroupStart)() })?;
        let inside = calls();
        // A group ends even if something in it failed: the thread would be inside it for ever.
        // SAFETY: as the caller says; a group was begun.
        let end = self.check("ncclGroupEnd", unsafe { (self.ncclGroupEnd)() });
        inside.and(end)
    }
}

/// A text of NCCL's; empty if there is none.
fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: NCCL's texts end with a zero, and live as long as the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

#[cfg(test)]
mod tests;
