//! Return values, and their messages.

use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// NCCL's `ncclResult_t`.
pub(crate) type Status = c_int;

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

#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    message: CString,
}

/// The reason why a rank stopped in a collective.
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

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::InvalidArgument, message)
    }

    /// The message for `ncclGetLastError`. It is never freed, since the caller may keep the pointer.
    pub(crate) fn keep_message(&self) -> *mut c_char {
        self.message.clone().into_raw()
    }
}

static LAST: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// The last error message of this process, or an empty one.
pub(crate) fn last_message() -> *const c_char {
    let last = LAST.load(Ordering::Acquire);
    if last.is_null() { c"".as_ptr() } else { last }
}

/// Converts a result to a return value; keeps the message for `ncclGetLastError`.
pub(crate) fn status<T>(result: Result<T, Fault>) -> Status {
    let Err(fault) = result else { return 0 };
    if fault.kind != Kind::InProgress {
        LAST.store(fault.keep_message(), Ordering::Release);
    }
    fault.kind as Status
}

/// The address for a result, in C a pointer that may be null.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes a result to the caller's address.
pub(crate) fn give<T>(to: Out<'_, T>, value: T) -> Result<&mut T, Fault> {
    let to = to.ok_or_else(|| Fault::invalid("a pointer for a result is null"))?;
    Ok(to.write(value))
}

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
