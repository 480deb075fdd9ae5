//! Groups: communicators over a subset of the ranks.

use std::ffi::c_int;
use std::ptr;

use unisono::Communicator;
use unisono_bindings::arguments;

use super::comm::{Comm, on, out};
use super::errors::argument;
use super::values::list;

/// Splits the ranks into one communicator per color, numbered by key and, among equal keys, by their rank here. A rank with a
/// negative color is in no group, and gets NULL. All ranks call it.
///
/// # Safety
/// The handle must be live, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_split(
    comm: *mut Comm,
    color: c_int,
    key: c_int,
    group: *mut *mut Comm,
) -> c_int {
    let body = |comm: &mut Communicator| {
        // SAFETY: as the caller promises.
        let place = unsafe { out(group, "the group")? };
        let group = comm.split(usize::try_from(color).ok(), i64::from(key))?;
        *place = group.map_or(ptr::null_mut(), Comm::into_raw);
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Creates a communicator of `count` ranks of this one, numbered in this order; other ranks get NULL. All ranks call it, with the same
/// list.
///
/// # Safety
/// The handle must be live, the list one of `count` ranks, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_group(
    comm: *mut Comm,
    ranks: *const c_int,
    count: usize,
    group: *mut *mut Comm,
) -> c_int {
    let body = |comm: &mut Communicator| {
        // SAFETY: as the caller promises, for both.
        let (place, ranks) = unsafe { (out(group, "the group")?, list(ranks, count, "ranks")?) };
        let members = arguments::members(ranks, comm.ranks()).map_err(argument)?;
        let group = comm.group(&members)?;
        *place = group.map_or(ptr::null_mut(), Comm::into_raw);
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}
