//! An all-to-all with a count for every pair of ranks.

use std::ffi::{c_int, c_void};

use unisono::{Communicator, Element, with_type};
use unisono_bindings::{Lent, arguments};

use super::comm::{Comm, on};
use super::errors::{Result, argument};
use super::options::{self, Call};
use super::requests::{Request, start_on};
use super::values::{self, lent, list};

/// The arrays of a call, and the counts of their parts.
#[derive(Clone, Copy)]
struct Arrays {
    sent: *const c_void,
    sent_counts: *const usize,
    received: *mut c_void,
    received_counts: *const usize,
}

impl Arrays {
    /// Returns the array to send and the array to receive, each with the counts of its parts.
    ///
    /// # Errors
    /// As [`lent`]; if the counts are null, or differ for this rank itself; and if the arrays overlap.
    ///
    /// # Safety
    /// The counts must be null, or one for each rank that outlives the result. The arrays must be as [`lent`] requires for the sums of
    /// the counts. The sent array is only read.
    unsafe fn lent<'a, T: Element>(self, comm: &Communicator) -> Result<[(Lent<T>, &'a [usize]); 2]> {
        let ranks = comm.ranks();
        // SAFETY: as the caller promises, for both.
        let (to, from) = unsafe {
            let to = list(self.sent_counts, ranks, "counts sent")?;
            (to, list(self.received_counts, ranks, "counts received")?)
        };
        let (all_to, all_from) = (sum(to)?, sum(from)?);
        arguments::counts_of_pairs((all_to, to), (all_from, from), (comm.rank(), ranks)).map_err(argument)?;
        // SAFETY: as the caller promises, for both.
        let (sent, received): (Lent<T>, Lent<T>) =
            unsafe { (lent(self.sent.cast_mut(), all_to)?, lent(self.received, all_from)?) };
        let (read, written) = (sent.as_ptr_range(), received.as_ptr_range());
        if read.start < written.end && written.start < read.end {
            return Err(argument("the array to send and the array to receive overlap"));
        }
        Ok([(sent, to), (received, from)])
    }
}

fn sum(counts: &[usize]) -> Result<usize> {
    let sum = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
    sum.ok_or_else(|| argument(format!("the counts {counts:?} exceed the address space")))
}

/// Sends to every rank a part of one array, and receives a part of another array from each (`MPI_Alltoallv`, with contiguous parts in
/// the order of ranks). `sent_counts[j]` is the number of elements for rank j, and `received_counts[i]` the number from rank i; both
/// may be 0. Rank j must expect as many elements from this rank. The arrays must not overlap.
///
/// # Safety
/// The handle must be live, the counts one for each rank, the arrays of the sums of these counts, and the options null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_all_to_all_v(
    comm: *mut Comm,
    sent: *const c_void,
    sent_counts: *const usize,
    received: *mut c_void,
    received_counts: *const usize,
    dtype: c_int,
    options: *const Call,
) -> c_int {
    let arrays = Arrays { sent, sent_counts, received, received_counts };
    let body = |comm: &mut Communicator| {
        with_type!(values::dtype(dtype)?, T => {
            // SAFETY: as the caller promises.
            unsafe {
                let [(sent, to), (mut received, from)] = arrays.lent::<T>(comm)?;
                options::call_whole(comm, options, |comm| {
                    comm.all_to_all_v(&sent, to, &mut received, from).map(drop)
                })
            }
        })
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Starts the non-blocking form of `unisono_all_to_all_v`. Do not access either array until `unisono_wait` has returned. The counts
/// are copied.
///
/// # Safety
/// As the blocking form; the pointer to the request must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_all_to_all_v_async(
    comm: *mut Comm,
    sent: *const c_void,
    sent_counts: *const usize,
    received: *mut c_void,
    received_counts: *const usize,
    dtype: c_int,
    options: *const Call,
    request: *mut *mut Request,
) -> c_int {
    let arrays = Arrays { sent, sent_counts, received, received_counts };
    let start = |comm: &mut Communicator| {
        with_type!(values::dtype(dtype)?, T => {
            // SAFETY: as the caller promises.
            unsafe {
                let [(sent, to), (received, from)] = arrays.lent::<T>(comm)?;
                let start = |comm: &mut Communicator| comm.all_to_all_v_async(sent, to, received, from);
                Ok(Request::of((options::call_whole(comm, options, start)?, drop)))
            }
        })
    };
    // SAFETY: as the caller promises.
    unsafe { start_on(comm, request, start) }
}
