//! Non-blocking collectives. They match the blocking forms: one rank may block while another does not.

use std::ffi::{c_int, c_void};

use unisono::{Communicator, Operation, with_type};

use super::collectives::{Array, checked, collective};
use super::comm::Comm;
use super::options::{self, Call};
use super::requests::{Request, start_on};
use super::values::lent;

/// # Safety
/// As [`start_on`]; the array must be as [`lent`] requires, and the options as [`options::call`] requires.
unsafe fn non_blocking(
    comm: *mut Comm,
    array: Array,
    options: *const Call,
    request: *mut *mut Request,
    operation: Operation,
    op: Option<c_int>,
) -> c_int {
    let start = |comm: &mut Communicator| {
        let collective = collective(comm, operation, op)?;
        // SAFETY: as the caller promises.
        let dtype = unsafe { checked(comm, array, collective, options)? };
        with_type!(dtype, T => {
            // SAFETY: as the caller promises, for the array and the options.
            unsafe {
                let values = lent::<T>(array.data, array.count)?;
                Ok(Request::of(options::call(comm, options, |comm| collective.non_blocking(comm, values))?))
            }
        })
    };
    // SAFETY: as the caller promises.
    unsafe { start_on(comm, request, start) }
}

/// Starts the non-blocking form of `unisono_all_reduce`. Do not access the array until `unisono_wait` has returned.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_all_reduce_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        non_blocking(comm, Array { data, count, dtype }, options, request, Operation::AllReduce, Some(op))
    }
}

/// Starts the non-blocking form of `unisono_reduce_scatter`. Do not access the array until `unisono_wait` has returned.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_reduce_scatter_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        non_blocking(comm, Array { data, count, dtype }, options, request, Operation::ReduceScatter, Some(op))
    }
}

/// Starts the non-blocking form of `unisono_scan`. Do not access the array until `unisono_wait` has returned.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_scan_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { non_blocking(comm, Array { data, count, dtype }, options, request, Operation::Scan, Some(op)) }
}

/// Starts the non-blocking form of `unisono_exclusive_scan`. Do not access the array until `unisono_wait` has returned.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_exclusive_scan_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        non_blocking(comm, Array { data, count, dtype }, options, request, Operation::ExclusiveScan, Some(op))
    }
}

/// Starts the non-blocking form of `unisono_all_gather`. Do not access the array until `unisono_wait` has returned.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_all_gather_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { non_blocking(comm, Array { data, count, dtype }, options, request, Operation::AllGather, None) }
}

/// Starts the non-blocking form of `unisono_broadcast`. Do not access the array until `unisono_wait` has returned.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_broadcast_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    let operation = Operation::Broadcast { root: root as usize };
    // SAFETY: as the caller promises.
    unsafe { non_blocking(comm, Array { data, count, dtype }, options, request, operation, None) }
}

/// Starts the non-blocking form of `unisono_reduce`. Do not access the array until `unisono_wait` has returned.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_reduce_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    let operation = Operation::Reduce { root: root as usize };
    // SAFETY: as the caller promises.
    unsafe { non_blocking(comm, Array { data, count, dtype }, options, request, operation, Some(op)) }
}

/// Starts the non-blocking form of `unisono_gather`. Do not access the array until `unisono_wait` has returned.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_gather_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    let operation = Operation::Gather { root: root as usize };
    // SAFETY: as the caller promises.
    unsafe { non_blocking(comm, Array { data, count, dtype }, options, request, operation, None) }
}

/// Starts the non-blocking form of `unisono_scatter`. Do not access the array until `unisono_wait` has returned.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_scatter_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    let operation = Operation::Scatter { root: root as usize };
    // SAFETY: as the caller promises.
    unsafe { non_blocking(comm, Array { data, count, dtype }, options, request, operation, None) }
}

/// Starts the non-blocking form of `unisono_all_to_all`. Do not access the array until `unisono_wait` has returned.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_all_to_all_async(
    comm: *mut Comm,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { non_blocking(comm, Array { data, count, dtype }, options, request, Operation::AllToAll, None) }
}

/// Starts the non-blocking form of `unisono_barrier`.
///
/// # Safety
/// The handle must be live, the options null or valid, and the pointer to the request valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_barrier_async(
    comm: *mut Comm,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    let start = |comm: &mut Communicator| {
        // SAFETY: as the caller promises.
        let started = unsafe { options::call_whole(comm, options, Communicator::barrier_async)? };
        Ok(Request::of(started))
    };
    // SAFETY: as the caller promises.
    unsafe { start_on(comm, request, start) }
}
