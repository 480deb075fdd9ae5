//! Communicators of the ranks that are left after a failure, and of ranks that join.

use std::ffi::{c_char, c_int};
use std::ptr;

use unisono::Communicator;

use super::comm::{Comm, communicator, on, out, required_text, take};
use super::errors::guarded;
use super::options::{self, Settings};
use super::waits::with_callback;

/// Replaces a communicator, after an error that loses it, by one of the ranks that are left. All of them call it. They keep their
/// order and get new numbers. Further ranks may fail meanwhile. On an error the communicator is freed and set to NULL.
///
/// A rank is left out if its process has ended, or if it has freed its communicator. A rank that is alive and does not call this in
/// time is UNISONO_ERROR_TIMEOUT; the text names it, and reports whether its process is stopped. The old communicator ends on all
/// ranks when the first of them calls this: ranks in a call get UNISONO_ERROR_ABORTED, and can call it too. If MPI connects the
/// ranks, the error is UNISONO_ERROR_UNSUPPORTED. If a rank of several machines reaches too few of the ranks that may be alive, the
/// error is UNISONO_ERROR_PARTITIONED.
///
/// The new communicator inherits the algorithm and the timeout. Wait for the requests of the old one first. Its groups are lost;
/// its memory keeps its values until it is released, and calls treat it as any other memory.
///
/// # Safety
/// The pointer must be to a live handle, which is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_shrink(comm: *mut *mut Comm) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let place = unsafe { out(comm, "the communicator")? };
        // SAFETY: as the caller promises; the program has no other handle of it.
        let failed = unsafe { take(*place)? };
        *place = ptr::null_mut();
        *place = Comm::into_raw(with_callback(|| failed.shrink())?);
        Ok(())
    })
}

/// Creates a communicator of these ranks and of `more` processes, which call `unisono_join` with the same address: the path of a
/// Unix socket, or `host:port` of rank 0's machine. All ranks call it. The communicator remains usable, even if the processes do
/// not join in time (UNISONO_ERROR_ON_RANK_0). A port that other machines can reach needs UNISONO_SECRET.
///
/// # Safety
/// The handle must be live, the address a string, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_grow(
    comm: *mut Comm,
    more: usize,
    address: *const c_char,
    grown: *mut *mut Comm,
) -> c_int {
    let body = |comm: &mut Communicator| {
        // SAFETY: as the caller promises, for both.
        let (place, address) =
            unsafe { (out(grown, "the communicator")?, required_text(address, "the address")?) };
        *place = Comm::into_raw(comm.grow(more, address)?);
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Joins a world that grows at this address (`unisono_grow`), as one of its last ranks. The algorithm and the timeouts are those of the
/// world.
///
/// # Safety
/// The address must be a string, the settings null or valid, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_join(
    address: *const c_char,
    settings: *const Settings,
    comm: *mut *mut Comm,
) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises, for all three.
        let (place, builder, address) = unsafe {
            (
                out(comm, "the communicator")?,
                options::builder(settings)?,
                required_text(address, "the address")?,
            )
        };
        *place = Comm::into_raw(with_callback(|| builder.join(address))?);
        Ok(())
    })
}

/// Sets the number of ranks that must be left for `unisono_shrink` to succeed, identical on all ranks. Of several machines, it
/// replaces the rule that most of the ranks that may be alive must be left: if the network is divided, and both sides have at least
/// this number of ranks, both continue.
///
/// # Safety
/// The handle must be null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_set_minimum_ranks(comm: *mut Comm, ranks: usize) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        unsafe { communicator(comm) }?.set_minimum_ranks(ranks);
        Ok(())
    })
}

/// Returns the number that a rank had before `unisono_shrink`; -1 if that did not return this communicator, there is no such
/// rank, or the handle is not valid in this process.
///
/// # Safety
/// The handle must be null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_former_rank(comm: *mut Comm, rank: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let Ok(comm) = (unsafe { communicator(comm) }) else { return -1 };
    let former = usize::try_from(rank).ok().and_then(|rank| comm.former_ranks().get(rank));
    former.map_or(-1, |&rank| rank as c_int)
}
