//! The handle of a communicator.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use unisono::{Communicator, panic_text};
use unisono_bindings::Owner;
use unisono_compress::Levels;

use super::errors::{Result, argument, guarded};
use super::waits::with_callback;

/// One rank's handle to a world of ranks, or to a group of them. One thread at a time uses it.
#[derive(Debug)]
pub struct Comm {
    /// Present once there is a compressor. All compressors share it.
    pub(crate) levels: Option<Levels>,
    pub(crate) inner: Communicator,
    /// Differs from that of every other communicator of this process, also of freed ones.
    pub(crate) number: u64,
    owner: Owner,
}

impl Comm {
    /// Passes the ownership of a communicator to the program.
    pub(crate) fn into_raw(inner: Communicator) -> *mut Self {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        Box::into_raw(Box::new(Self { levels: None, inner, number, owner: Owner::this_process() }))
    }

    /// # Errors
    /// If an object, which belongs to the communicator of this number, is passed with another one.
    pub(crate) fn check_number(&self, number: u64, what: &str) -> Result<()> {
        if self.number == number {
            return Ok(());
        }
        Err(argument(format!("the {what} belongs to another communicator")))
    }
}

/// Returns the communicator of a handle.
///
/// # Safety
/// The handle must be null or live, and no other thread may use it meanwhile.
unsafe fn live<'a>(comm: *mut Comm) -> Result<&'a mut Comm> {
    // SAFETY: as the caller promises.
    let comm = unsafe { comm.as_mut() }.ok_or_else(|| argument("the communicator is NULL"))?;
    comm.owner.check().map_err(argument)?;
    Ok(comm)
}

/// Returns the communicator of a handle.
///
/// # Safety
/// As [`live`].
pub(crate) unsafe fn communicator<'a>(comm: *mut Comm) -> Result<&'a mut Communicator> {
    // SAFETY: as the caller promises.
    unsafe { live(comm) }.map(|comm| &mut comm.inner)
}

/// Returns the communicator of a handle, which is freed.
///
/// # Safety
/// As [`live`]; no other copy of the handle is used afterwards.
pub(crate) unsafe fn take(comm: *mut Comm) -> Result<Communicator> {
    // SAFETY: as the caller promises.
    unsafe { live(comm)? };
    // SAFETY: the handle is live, so it came from `into_raw`.
    let Comm { inner, levels, .. } = *unsafe { Box::from_raw(comm) };
    drop(levels);
    Ok(inner)
}

/// Runs the body of a function on the communicator of a handle. A panic loses the communicator.
///
/// # Safety
/// As [`communicator`].
pub(crate) unsafe fn on(comm: *mut Comm, body: impl FnOnce(&mut Communicator) -> Result<()>) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { on_handle(comm, |comm| body(&mut comm.inner)) }
}

/// Like [`on`], for a function that also needs the rest of the handle.
///
/// # Safety
/// As [`communicator`].
pub(crate) unsafe fn on_handle(comm: *mut Comm, body: impl FnOnce(&mut Comm) -> Result<()>) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let comm = unsafe { live(comm)? };
        let ran = catch_unwind(AssertUnwindSafe(|| with_callback(|| body(comm))));
        ran.unwrap_or_else(|panic| match comm.inner.error_of_reduction(panic) {
            Ok(error) => Err(error.into()),
            Err(panic) => {
                comm.inner.fail(panic_text(&*panic).unwrap_or("a defect of unisono"));
                resume_unwind(panic)
            }
        })
    })
}

/// Returns a pointer to which a function writes its result.
///
/// # Safety
/// The pointer must be null or valid for writing a `T`.
pub(crate) unsafe fn out<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_mut() }.ok_or_else(|| argument(format!("the pointer to {what} is NULL")))
}

/// Frees a communicator. Other ranks that still wait for this one get UNISONO_ERROR_LEFT. Wait for its requests first, and free its
/// groups and memory before or after. NULL is ignored. In a forked child, only the handle is discarded, and that of the parent
/// remains valid.
///
/// # Safety
/// The handle must be null or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_free(comm: *mut Comm) {
    if !comm.is_null() {
        // SAFETY: the handle is live, as the caller promises, so it came from `into_raw`.
        let comm = unsafe { Box::from_raw(comm) };
        comm.owner.free(comm);
    }
}

/// Returns the number of this rank, from 0; -1 if the handle is not valid in this process.
///
/// # Safety
/// The handle must be null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_rank(comm: *mut Comm) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { communicator(comm) }.map_or(-1, |comm| comm.rank() as c_int)
}

/// Returns the number of ranks; -1 if the handle is not valid in this process.
///
/// # Safety
/// The handle must be null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_size(comm: *mut Comm) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { communicator(comm) }.map_or(-1, |comm| comm.ranks() as c_int)
}

/// Returns the number of nodes that the ranks are on; -1 if the handle is not valid in this process.
///
/// # Safety
/// The handle must be null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_nodes(comm: *mut Comm) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { communicator(comm) }.map_or(-1, |comm| comm.topology().nodes() as c_int)
}

/// Returns the part of an array of `count` elements that belongs to this rank in a reduce-scatter, scatter, gather or all-gather:
/// `length` elements from `start` on.
///
/// # Safety
/// The handle must be null or live, and the pointers null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_own_part(
    comm: *mut Comm,
    count: usize,
    start: *mut usize,
    length: *mut usize,
) -> c_int {
    let body = |comm: &mut Communicator| {
        // SAFETY: as the caller promises, for both.
        let (start, length) = unsafe { (out(start, "the start")?, out(length, "the length")?) };
        let own = comm.own_part(count);
        (*start, *length) = (own.start, own.len());
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Declares that this rank cannot continue: other ranks get UNISONO_ERROR_ABORTED with the cause instead of waiting for it.
///
/// # Safety
/// The handle must be null or live, and the cause null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_fail(comm: *mut Comm, cause: *const c_char) -> c_int {
    let body = |comm: &mut Communicator| {
        if cause.is_null() {
            comm.fail("for an unspecified reason");
        } else {
            // SAFETY: as the caller promises.
            comm.fail(&unsafe { CStr::from_ptr(cause) }.to_string_lossy());
        }
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Returns a string argument that must not be null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn required_text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: as the caller promises.
    let text = unsafe { text(pointer, what)? }.filter(|text| !text.is_empty());
    text.ok_or_else(|| argument(format!("{what} is NULL or empty")))
}

/// Returns a string argument; `None` if it is null.
///
/// # Safety
/// The pointer must be null or a string that lives as long as the result is used.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| argument(format!("{what} is not UTF-8")))
}
