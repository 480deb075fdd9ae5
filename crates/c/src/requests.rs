//! Non-blocking calls in flight.

use std::ffi::c_int;

use unisono::Communicator;
use unisono_bindings::{InFlight, Owner, arguments};

use super::comm::{Comm, on, out};
use super::errors::{Result, argument, guarded};
use super::waits::with_callback;

/// A non-blocking call. Every one must be waited for.
pub struct Request {
    call: Box<dyn InFlight>,
    owner: Owner,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("is_done", &self.call.is_done()).finish_non_exhaustive()
    }
}

impl Request {
    /// Passes the ownership of a call to the program.
    pub(crate) fn of(call: impl InFlight + 'static) -> *mut Self {
        Box::into_raw(Box::new(Self { call: Box::new(call), owner: Owner::this_process() }))
    }
}

/// Stores 1 in `is_done` if a call is done, so that `unisono_wait` returns at once, otherwise 0.
///
/// # Safety
/// The request must be live, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_test(request: *const Request, is_done: *mut c_int) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (request, is_done) = unsafe { live(request, is_done)? };
        *is_done = c_int::from(request.call.is_done());
        Ok(())
    })
}

/// Waits until a call is done, at most `timeout_s` seconds, which are above 0. Stores 1 in `is_done` if the call is done, otherwise 0. It does
/// not free the request: `unisono_wait` does, and returns the result of the call.
///
/// # Safety
/// The request must be live, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_wait_for(
    request: *const Request,
    timeout_s: f64,
    is_done: *mut c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (request, is_done) = unsafe { live(request, is_done)? };
        let timeout = arguments::timeout(timeout_s).map_err(argument)?;
        *is_done = c_int::from(with_callback(|| request.call.wait_for(timeout)));
        Ok(())
    })
}

/// Waits until a call is done, frees the request, and sets it to NULL. Returns the result of the call. Any thread may wait for it.
///
/// # Safety
/// The pointer must be to a live request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_wait(request: *mut *mut Request) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let place = unsafe { out(request, "the request")? };
        if place.is_null() {
            return Err(argument("the request is NULL"));
        }
        // SAFETY: as the caller promises.
        unsafe { finish(place) }
    })
}

/// Waits until `count` calls are done, frees their requests, and sets them to NULL (`MPI_Waitall`). Requests that are NULL are skipped.
/// Returns the first error in the order of the requests, once all are done.
///
/// # Safety
/// The pointer must be to `count` requests that are live or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_wait_all(count: usize, requests: *mut *mut Request) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let requests = unsafe { all(count, requests)? };
        let live = requests.iter_mut().filter(|request| !request.is_null());
        // SAFETY: as the caller promises.
        let ended: Vec<_> = live.map(|request| unsafe { finish(request) }).collect();
        ended.into_iter().collect()
    })
}

/// Waits until one of `count` calls is done, frees its request, sets it to NULL, and stores its index (`MPI_Waitany`). Requests that are
/// NULL are skipped; if all are, the index is -1. Returns the result of the call.
///
/// # Safety
/// The pointer must be to `count` requests that are live or NULL, and `index` valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_wait_any(
    count: usize,
    requests: *mut *mut Request,
    index: *mut c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises, for both.
        let (requests, index) = unsafe { (all(count, requests)?, out(index, "the index")?) };
        *index = -1;
        let done = {
            // SAFETY: the request is live or null, as the caller promises.
            let call = |place: usize| unsafe { requests[place].as_ref() };
            let live = || (0..count).filter_map(|place| Some((place, call(place)?)));
            let Some((_, first)) = live().next() else { return Ok(()) };
            first.owner.check().map_err(argument)?;
            let done = || live().find(|(_, request)| request.call.is_done()).map(|(place, _)| place);
            let waits = live().map(|(_, request)| request).find(|request| request.call.is_driven());
            with_callback(|| waits.unwrap_or(first).call.wait_until(&|| done().is_some()));
            done().expect("the wait ends when a call is done")
        };
        *index = done as c_int;
        // SAFETY: as the caller promises.
        unsafe { finish(&mut requests[done]) }
    })
}

/// Returns a request, and the place for its status.
///
/// # Safety
/// The request must be null or live, and the pointer null or valid for writing.
unsafe fn live<'a>(request: *const Request, is_done: *mut c_int) -> Result<(&'a Request, &'a mut c_int)> {
    // SAFETY: as the caller promises, for both.
    let (request, is_done) = unsafe {
        (request.as_ref().ok_or_else(|| argument("the request is NULL"))?, out(is_done, "the status")?)
    };
    request.owner.check().map_err(argument)?;
    Ok((request, is_done))
}

/// Returns the requests of a program.
///
/// # Safety
/// The pointer must be null or to `count` requests.
unsafe fn all<'a>(count: usize, requests: *mut *mut Request) -> Result<&'a mut [*mut Request]> {
    match (count, requests.is_null()) {
        (0, _) => Ok(&mut []),
        (_, true) => Err(argument("the requests are NULL")),
        // SAFETY: as the caller promises.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(requests, count) }),
    }
}

/// Waits until a call is done, frees its request, and sets it to NULL.
///
/// # Safety
/// The request must be live.
unsafe fn finish(place: &mut *mut Request) -> Result<()> {
    // SAFETY: the request is live, as the caller promises, and so came from `into_raw`.
    let request = unsafe { Box::from_raw(std::mem::replace(place, std::ptr::null_mut())) };
    if let Err(refused) = request.owner.check() {
        std::mem::forget(request);
        return Err(argument(refused));
    }
    Ok(with_callback(|| request.call.wait())?)
}

/// Runs the body of a function that starts a call, and passes its request to the program.
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
