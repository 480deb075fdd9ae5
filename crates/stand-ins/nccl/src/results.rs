//! Return values, and their messages.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// NCCL's `ncclResult_t`.
pub(crate) type Status = c_int;

/// An error of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Kind {
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    InProgress = 7,
}

/// The reason why a call failed.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    message: CString,
}

/// The reason why a rank stopped in a collective.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed(Fault),
    /// Its communicator was aborted; no message is needed.
    Aborted,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault)
    }
}

impl Fault {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: CString::new(message.into()).expect("messages contain no zero") }
    }

    /// Not an error: `ncclCommGetAsyncError` reports progress, without a message.
    pub(crate) fn in_progress() -> Self {
        Self::new(Kind::InProgress, "")
    }

    /// A null pointer that must not be null.
    pub(crate) fn null(name: &str) -> Self {
        Self::new(Kind::InvalidArgument, format!("{name} is null"))
    }

    /// The message for `ncclGetLastError`. It is never freed, since the caller may keep the pointer.
    pub(crate) fn keep_message(&self) -> *mut c_char {
        self.message.clone().into_raw()
    }
}

/// The last error message of this process.
static LAST: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// The last error message of this process, or an empty one.
pub(crate) fn last_message() -> *const c_char {
    let last = LAST.load(Ordering::Acquire);
    if last.is_null() { c"".as_ptr() } else { last }
}

/// Converts a result to a return value; keeps the message for `ncclGetLastError`.
pub(crate) fn status(result: Result<(), Fault>) -> Status {
    let Err(fault) = result else { return 0 };
    if fault.kind != Kind::InProgress {
        LAST.store(fault.keep_message(), Ordering::Release);
    }
    fault.kind as Status
}

/// Writes a result to the caller's address.
///
/// # Safety
/// The pointer must be null, or valid for a write.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Fault> {
    if to.is_null() {
        return Err(Fault::null("a pointer for a result"));
    }
    // SAFETY: not null, so valid for a write as the caller promises; declared in C, so aligned.
    unsafe { to.write(value) };
    Ok(())
}

/// NCCL's `ncclGetErrorString`.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(result: Status) -> *const c_char {
    let text = match result {
        0 => c"no error",
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        8 => c"timeout",
        _ => c"unknown result code",
    };
    text.as_ptr()
}
