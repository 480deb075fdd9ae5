//! Collectives, blocking and non-blocking. One rank may block in a call that another one only starts.
//!
//! All work in place, on `count` elements at `data`, which may be NULL if `count` is 0. All ranks make the same calls in the same
//! order, with the same `count`, type, reduction and root; otherwise they get UNISONO_ERROR_MISMATCH, whose text names both calls.

use std::ffi::{c_int, c_void};

use unisono::{Communicator, DType, Operation, with_type};
use unisono_bindings::{Collective, arguments};

use super::comm::{Comm, on};
use super::errors::{Result, argument};
use super::exported::exported;
use super::options::{self, Call};
use super::reductions;
use super::requests::{Request, start_on};
use super::values::{self, lent};

#[derive(Clone, Copy)]
pub(crate) struct Array {
    pub(crate) data: *mut c_void,
    pub(crate) count: usize,
    pub(crate) dtype: c_int,
}

pub(crate) fn root(comm: &Communicator, root: c_int) -> Result<usize> {
    arguments::rank(root, comm.ranks(), "root").map_err(argument)
}

/// Returns a collective with the reduction of this number, after checking it and the root.
pub(crate) fn collective(comm: &Communicator, operation: Operation, op: Option<c_int>) -> Result<Collective> {
    let op = op.map(reductions::op).transpose()?;
    if let Some(passed) = operation.root() {
        // The number that the program has passed, which may be negative.
        root(comm, passed as c_int)?;
    }
    Ok(Collective { operation, op })
}

/// # Safety
/// The options must be as [`options::counts`] requires.
pub(crate) unsafe fn checked(
    comm: &Communicator,
    array: Array,
    collective: Collective,
    options: *const Call,
) -> Result<DType> {
    let (dtype, count) = (values::dtype(array.dtype)?, array.count);
    let size = collective.element_bytes().map(|size| usize::from(size.get()));
    if let Some(size) = size
        && (dtype != DType::U8 || !count.is_multiple_of(size))
    {
        return Err(argument(format!(
            "{count} {dtype} are not whole elements of the reduction, which have {size} bytes as UNISONO_U8"
        )));
    }
    // SAFETY: as the caller promises.
    let counts = unsafe { options::counts(options, comm.ranks()) };
    collective.check(count / size.unwrap_or(1), comm.ranks(), counts).map_err(argument)?;
    Ok(dtype)
}

/// # Safety
/// The handle must be null or live; the array must be as [`lent`] requires, and the options as [`options::call`] requires.
unsafe fn blocking(
    comm: *mut Comm,
    array: Array,
    options: *const Call,
    operation: Operation,
    op: Option<c_int>,
) -> c_int {
    let body = |comm: &mut Communicator| {
        let collective = collective(comm, operation, op)?;
        let Collective { operation, op } = collective;
        // SAFETY: as the caller promises.
        let dtype = unsafe { checked(comm, array, collective, options)? };
        with_type!(dtype, T => {
            // SAFETY: as the caller promises, for the array and the options.
            unsafe {
                let mut values = lent::<T>(array.data, array.count)?;
                let make = |comm: &mut Communicator| comm.run(operation, op, &mut values).map(drop);
                options::call(comm, options, collective.element_bytes(), make)
            }
        })
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

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
        let Collective { operation, op } = collective;
        // SAFETY: as the caller promises.
        let dtype = unsafe { checked(comm, array, collective, options)? };
        with_type!(dtype, T => {
            // SAFETY: as the caller promises, for the array and the options.
            unsafe {
                let values = lent::<T>(array.data, array.count)?;
                let make = |comm: &mut Communicator| comm.call_async(operation, op, values);
                Ok(Request::of((options::call(comm, options, collective.element_bytes(), make)?, drop)))
            }
        })
    };
    // SAFETY: as the caller promises.
    unsafe { start_on(comm, request, start) }
}

/// Exports the blocking and the non-blocking form of each collective, whose arguments include its reduction and its root.
macro_rules! collectives {
    ($($(#[doc = $doc:expr])* $blocking:ident, $started:ident($($argument:ident),*) = $operation:expr, $op:expr;)*) => {
        exported! {$(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// The handle must be live, the array one of `count` elements, and the options null or valid.
            fn $blocking(
                comm: *mut Comm,
                data: *mut c_void,
                count: usize,
                dtype: c_int,
                $($argument: c_int,)*
                options: *const Call,
            ) {
                // SAFETY: as the caller promises.
                unsafe { blocking(comm, Array { data, count, dtype }, options, $operation, $op) }
            }

            #[doc = concat!(" Starts the non-blocking form of `", stringify!($blocking), "`. Do not access the array until \
                `unisono_wait` has returned.")]
            ///
            /// # Safety
            /// As the blocking form; the pointer to the request must be valid.
            fn $started(
                comm: *mut Comm,
                data: *mut c_void,
                count: usize,
                dtype: c_int,
                $($argument: c_int,)*
                options: *const Call,
                request: *mut *mut Request,
            ) {
                // SAFETY: as the caller promises.
                unsafe { non_blocking(comm, Array { data, count, dtype }, options, request, $operation, $op) }
            }
        )*}
    };
}

collectives! {
    /// Leaves the reduction of all arrays on every rank, bitwise identical.
    unisono_all_reduce, unisono_all_reduce_async(op) = Operation::AllReduce, Some(op);

    /// Leaves on every rank its own part of the reduction of all arrays (`unisono_own_part`); the rest of the array is
    /// undefined.
    unisono_reduce_scatter, unisono_reduce_scatter_async(op) = Operation::ReduceScatter, Some(op);

    /// Leaves on every rank the reduction of the arrays of all ranks up to and including itself: `MPI_Scan`.
    unisono_scan, unisono_scan_async(op) = Operation::Scan, Some(op);

    /// Leaves on every rank the reduction of the arrays of all ranks before itself: `MPI_Exscan`. Rank 0's array is undefined.
    unisono_exclusive_scan, unisono_exclusive_scan_async(op) = Operation::ExclusiveScan, Some(op);

    /// Every rank contributes its own part of the array (`unisono_own_part`) and ends with all parts.
    unisono_all_gather, unisono_all_gather_async() = Operation::AllGather, None;

    /// Copies the root's array to every rank. The array must be writable on the root too: in a world of threads, another rank may
    /// write to it, without changing its values.
    unisono_broadcast, unisono_broadcast_async(root) = Operation::Broadcast { root: root as usize }, None;

    /// Leaves the reduction of all arrays on the root; the other arrays are undefined.
    unisono_reduce, unisono_reduce_async(op, root) = Operation::Reduce { root: root as usize }, Some(op);

    /// Every rank contributes its own part of the array (`unisono_own_part`), and the root ends with all parts.
    unisono_gather, unisono_gather_async(root) = Operation::Gather { root: root as usize }, None;

    /// Leaves on every rank its own part of the root's array (`unisono_own_part`); except on the root, the rest is undefined.
    unisono_scatter, unisono_scatter_async(root) = Operation::Scatter { root: root as usize }, None;

    /// Exchanges one block with every rank: block j of rank i becomes block i of rank j. The number of elements must be a multiple of
    /// the number of ranks.
    unisono_all_to_all, unisono_all_to_all_async() = Operation::AllToAll, None;
}

/// Returns once all ranks have called it.
///
/// # Safety
/// The handle must be live, and the options null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_barrier(comm: *mut Comm, options: *const Call) -> c_int {
    // SAFETY: as the caller promises.
    let body = |comm: &mut Communicator| unsafe { options::call_whole(comm, options, Communicator::barrier) };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
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
        Ok(Request::of((started, drop)))
    };
    // SAFETY: as the caller promises.
    unsafe { start_on(comm, request, start) }
}
