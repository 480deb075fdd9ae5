//! Non-blocking calls in flight.

use std::ffi::{c_int, c_void};

use unisono::{Communicator, Element};
use unisono_bindings::{Lent, Owner};

use super::comm::{Comm, on, out};
use super::errors::{Result, argument, guarded};
use super::options::{self, Call};
use super::values::lent;

/// A non-blocking call. Every one must be waited for.
pub struct Request {
    call: Box<dyn InFlight>,
    owner: Owner,
}

/// A call in flight, whatever its buffer is.
trait InFlight: Send {
    fn is_done(&self) -> bool;
    fn wait(self: Box<Self>) -> unisono::Result<()>;
}

impl<B: Send> InFlight for unisono::Request<B> {
    fn is_done(&self) -> bool {
        unisono::Request::is_done(self)
    }

    fn wait(self: Box<Self>) -> unisono::Result<()> {
        unisono::Request::wait(*self).map(drop)
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("is_done", &self.call.is_done()).finish_non_exhaustive()
    }
}

impl Request {
    /// Hands a call to the program.
    pub(crate) fn into_raw<B: Send + 'static>(call: unisono::Request<B>) -> *mut Self {
        Box::into_raw(Box::new(Self { call: Box::new(call), owner: Owner::this_process() }))
    }
}

/// Whether a call is done, so that `unisono_wait` returns at once: 1 if so, otherwise 0.
///
/// # Safety
/// The request must be live, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_test(request: *const Request, is_done: *mut c_int) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises, for both.
        let (request, is_done) =
            unsafe { (request.as_ref().ok_or_else(missing)?, out(is_done, "the answer")?) };
        request.owner.check().map_err(argument)?;
        *is_done = c_int::from(request.call.is_done());
        Ok(())
    })
}

/// Waits until a call is done, frees the request, and sets it to NULL. Returns the result of the call. Another thread than the one that
/// started the call may wait for it.
///
/// # Safety
/// The pointer must be to a live request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_wait(request: *mut *mut Request) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let place = unsafe { out(request, "the request")? };
        if place.is_null() {
            return Err(missing());
        }
        // SAFETY: the request is live, as the caller promises, and so came from `into_raw`.
        let request = unsafe { Box::from_raw(std::mem::replace(place, std::ptr::null_mut())) };
        if let Err(refused) = request.owner.check() {
            std::mem::forget(request);
            return Err(argument(refused));
        }
        Ok(request.call.wait()?)
    })
}

fn missing() -> super::errors::Failure {
    argument("the request is NULL")
}

/// Starts a call on an array of the program's.
///
/// # Safety
/// As [`lent`] and [`options::call`].
pub(crate) unsafe fn started<T: Element>(
    comm: &mut Communicator,
    (data, count): (*mut c_void, usize),
    options: *const Call,
    start: impl FnOnce(&mut Communicator, Lent<T>) -> unisono::Result<unisono::Request<Lent<T>>>,
) -> Result<*mut Request> {
    // SAFETY: as the caller promises.
    unsafe {
        let values = lent(data, count)?;
        Ok(Request::into_raw(options::call(comm, options, |comm| start(comm, values))?))
    }
}

/// Runs the body of a function that starts a call, and hands its request to the program.
///
/// # Safety
/// The handle must be null or live, and the pointer null or valid for writing.
pub(crate) unsafe fn start_on(
    comm: *mut Comm,
    request: *mut *mut Request,
    start: impl FnOnce(&mut Communicator) -> Result<*mut Request>,
) -> c_int {
    let body = |comm: &mut Communicator| {
        // SAFETY: as the caller promises.
        let request = unsafe { out(request, "the request")? };
        *request = start(comm)?;
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}
