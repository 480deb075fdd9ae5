//! Non-blocking collectives. They match the blocking forms: one rank may block while another does not.

use std::ffi::{c_int, c_void};

use unisono::{Communicator, with_type};
use unisono_bindings::{Lent, Operation};

use super::collectives::{Array, checked, rank};
use super::comm::Comm;
use super::errors::Result;
use super::options::{self, Call};
use super::reductions;
use super::requests::{Request, start_on, started};

/// # Safety
/// As [`start_on`] and [`started`].
unsafe fn non_blocking(
    comm: *mut Comm,
    array: Array,
    options: *const Call,
    request: *mut *mut Request,
    operation: impl FnOnce(&Communicator) -> Result<Operation>,
) -> c_int {
    let start = |comm: &mut Communicator| {
        let operation = operation(comm)?;
        // SAFETY: as the caller promises.
        let dtype = unsafe { checked(comm, array, operation, options)? };
        with_type!(dtype, T => {
            let start = |comm: &mut Communicator, values: Lent<T>| operation.non_blocking(comm, values);
            // SAFETY: as the caller promises.
            unsafe { started(comm, (array.data, array.count), options, start) }
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
        non_blocking(comm, Array { data, count, dtype }, options, request, |_| {
            Ok(Operation::AllReduce(reductions::op(op)?))
        })
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
        non_blocking(comm, Array { data, count, dtype }, options, request, |_| {
            Ok(Operation::ReduceScatter(reductions::op(op)?))
        })
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
    unsafe {
        non_blocking(comm, Array { data, count, dtype }, options, request, |_| {
            Ok(Operation::Scan(reductions::op(op)?))
        })
    }
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
        non_blocking(comm, Array { data, count, dtype }, options, request, |_| {
            Ok(Operation::ExclusiveScan(reductions::op(op)?))
        })
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
    unsafe {
        non_blocking(comm, Array { data, count, dtype }, options, request, |_| Ok(Operation::AllGather))
    }
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
    // SAFETY: as the caller promises.
    unsafe {
        non_blocking(comm, Array { data, count, dtype }, options, request, |comm| {
            Ok(Operation::Broadcast(rank(comm, root, "root")?))
        })
    }
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
    // SAFETY: as the caller promises.
    unsafe {
        non_blocking(comm, Array { data, count, dtype }, options, request, |comm| {
            Ok(Operation::Reduce(reductions::op(op)?, rank(comm, root, "root")?))
        })
    }
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
    // SAFETY: as the caller promises.
    unsafe {
        non_blocking(comm, Array { data, count, dtype }, options, request, |comm| {
            Ok(Operation::Gather(rank(comm, root, "root")?))
        })
    }
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
    // SAFETY: as the caller promises.
    unsafe {
        non_blocking(comm, Array { data, count, dtype }, options, request, |comm| {
            Ok(Operation::Scatter(rank(comm, root, "root")?))
        })
    }
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
    unsafe { non_blocking(comm, Array { data, count, dtype }, options, request, |_| Ok(Operation::AllToAll)) }
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
        let started = unsafe {
            options::check_no_counts(options)?;
            options::call(comm, options, Communicator::barrier_async)?
        };
        Ok(Request::of(started))
    };
    // SAFETY: as the caller promises.
    unsafe { start_on(comm, request, start) }
}
