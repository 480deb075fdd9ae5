//! Point-to-point messages.
//!
//! Sender and receiver name the same type and count; otherwise the receiver gets UNISONO_ERROR_MISMATCH, whose text names both sides.
//! The tag of a message is an option of the call.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicPtr;

use unisono::{Communicator, with_type};
use unisono_bindings::{Lent, arguments};

use super::comm::{Comm, on, out};
use super::errors::{Result, argument};
use super::options::{self, Call};
use super::requests::{Request, start_on};
use super::values::{self, lent};

fn other(comm: &Communicator, number: c_int, what: &str) -> Result<usize> {
    arguments::other(number, (comm.rank(), comm.ranks()), what).map_err(argument)
}

/// Returns an error in a world of one rank, which has no other rank to receive from.
fn check_any_other(comm: &Communicator) -> Result<()> {
    match comm.ranks() {
        1 => Err(argument("a world of one rank has no messages to receive")),
        _ => Ok(()),
    }
}

/// Sends `count` elements to rank `to` (`MPI_Send`).
///
/// # Safety
/// The handle must be live, the array one of `count` elements, and the options null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_send(
    comm: *mut Comm,
    data: *const c_void,
    count: usize,
    dtype: c_int,
    to: c_int,
    options: *const Call,
) -> c_int {
    let body = |comm: &mut Communicator| {
        let to = other(comm, to, "receiver")?;
        with_type!(values::dtype(dtype)?, T => {
            // SAFETY: as the caller promises. The array is only read.
            unsafe {
                let values = lent::<T>(data.cast_mut(), count)?;
                options::call_whole(comm, options, |comm| comm.send(&values, to))
            }
        })
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Receives `count` elements from rank `from`: the earliest message with the tag of the options (`MPI_Recv`).
///
/// # Safety
/// The handle must be live, the array one of `count` elements, and the options null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_receive(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    from: c_int,
    options: *const Call,
) -> c_int {
    let body = |comm: &mut Communicator| {
        let from = other(comm, from, "sender")?;
        with_type!(values::dtype(dtype)?, T => {
            // SAFETY: as the caller promises.
            unsafe {
                let mut values = lent::<T>(data, count)?;
                options::call_whole(comm, options, |comm| comm.receive(&mut values, from))
            }
        })
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Receives `count` elements from the rank that sends first (`MPI_Recv` with `MPI_ANY_SOURCE`), and stores its number in `from`.
///
/// # Safety
/// The handle must be live, the array one of `count` elements, the pointer valid, and the options null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_receive_any(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    from: *mut c_int,
    options: *const Call,
) -> c_int {
    let body = |comm: &mut Communicator| {
        // SAFETY: as the caller promises.
        let from = unsafe { out(from, "the sender")? };
        check_any_other(comm)?;
        with_type!(values::dtype(dtype)?, T => {
            // SAFETY: as the caller promises.
            let sender = unsafe {
                let mut values = lent::<T>(data, count)?;
                options::call_whole(comm, options, |comm| comm.receive_any(&mut values))?
            };
            *from = sender as c_int;
            Ok(())
        })
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Starts the non-blocking form of `unisono_send` (`MPI_Isend`). Do not access the array until `unisono_wait` has returned. Any
/// number of messages may be in flight, in any order: none waits for another, nor for a collective.
///
/// # Safety
/// As `unisono_send`; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_send_async(
    comm: *mut Comm,
    data: *const c_void,
    count: usize,
    dtype: c_int,
    to: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    let start = |comm: &mut Communicator| {
        let to = other(comm, to, "receiver")?;
        with_type!(values::dtype(dtype)?, T => {
            // SAFETY: as the caller promises. The array is only read.
            unsafe {
                let values = lent::<T>(data.cast_mut(), count)?;
                let started = options::call_whole(comm, options, |comm| comm.send_async(values, to))?;
                Ok(Request::of((started, drop)))
            }
        })
    };
    // SAFETY: as the caller promises.
    unsafe { start_on(comm, request, start) }
}

/// Starts the non-blocking form of `unisono_receive` (`MPI_Irecv`), as `unisono_send_async`.
///
/// # Safety
/// As `unisono_receive`; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_receive_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    from: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    let start = |comm: &mut Communicator| {
        let from = other(comm, from, "sender")?;
        with_type!(values::dtype(dtype)?, T => {
            // SAFETY: as the caller promises.
            unsafe {
                let values = lent::<T>(data, count)?;
                let started = options::call_whole(comm, options, |comm| comm.receive_async(values, from))?;
                Ok(Request::of((started, drop)))
            }
        })
    };
    // SAFETY: as the caller promises.
    unsafe { start_on(comm, request, start) }
}

/// Starts the non-blocking form of `unisono_receive_any` (`MPI_Irecv` with `MPI_ANY_SOURCE`), as `unisono_send_async`. Once
/// `unisono_wait` has returned without an error, `from` is the number of the sender.
///
/// # Safety
/// As `unisono_receive_any`; the pointer to the request must be valid, and `from` until `unisono_wait` has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_receive_any_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    from: *mut c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    let start = |comm: &mut Communicator| {
        // SAFETY: as the caller promises.
        let from = AtomicPtr::new(unsafe { out(from, "the sender")? });
        check_any_other(comm)?;
        with_type!(values::dtype(dtype)?, T => {
            // SAFETY: as the caller promises.
            let call = unsafe {
                let values = lent::<T>(data, count)?;
                options::call_whole(comm, options, |comm| comm.receive_any_async(values))?
            };
            let store = move |(sender, _): (usize, Lent<T>)| {
                // SAFETY: the caller keeps the place until `unisono_wait` has returned.
                unsafe { from.into_inner().write(sender as c_int) };
            };
            Ok(Request::of((call, store)))
        })
    };
    // SAFETY: as the caller promises.
    unsafe { start_on(comm, request, start) }
}
