//! Registered memory: arrays that the other ranks of the machine access in place.

use std::ffi::{c_int, c_void};
use std::ptr;

use unisono::{Communicator, Registered, copy};
use unisono_bindings::{Owner, arguments};

use super::comm::{Comm, on, out};
use super::errors::argument;

/// Registered memory: a collective on any part of it needs no copy.
#[derive(Debug)]
pub struct Memory {
    words: Registered<u64>,
    owner: Owner,
}

/// Allocates registered memory of `size_bytes`, zeroed and aligned to a page. It is a local operation.
///
/// # Safety
/// The handle must be live, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_alloc(
    comm: *mut Comm,
    size_bytes: usize,
    memory: *mut *mut Memory,
) -> c_int {
    let body = |comm: &mut Communicator| {
        // SAFETY: as the caller promises.
        let place = unsafe { out(memory, "the memory")? };
        let words = comm.alloc(arguments::words(size_bytes).map_err(argument)?)?;
        *place = Box::into_raw(Box::new(Memory { words, owner: Owner::this_process() }));
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Returns the address of registered memory; NULL for NULL.
///
/// # Safety
/// The handle must be null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_address(memory: *mut Memory) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { memory.as_mut() }.map_or(ptr::null_mut(), |memory| memory.words.as_mut_ptr().cast())
}

/// Copies `size_bytes` bytes to or from registered memory. Unlike `memcpy` of some libraries, it takes about the same time for all
/// offsets of the two arrays within a page.
///
/// # Safety
/// Both pointers must be to this many bytes, which do not overlap. They may be null if `size_bytes` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_copy(to: *mut c_void, from: *const c_void, size_bytes: usize) {
    if size_bytes > 0 {
        // SAFETY: as the caller promises. The size of an existing object does not exceed `isize::MAX`.
        let (to, from) = unsafe {
            (
                std::slice::from_raw_parts_mut(to.cast::<u8>(), size_bytes),
                std::slice::from_raw_parts(from.cast::<u8>(), size_bytes),
            )
        };
        copy(to, from);
    }
}

/// Frees registered memory, before or after its communicator, and not while a call uses it. NULL is ignored.
///
/// # Safety
/// The handle must be null or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_release(memory: *mut Memory) {
    if !memory.is_null() {
        // SAFETY: the handle is live, as the caller promises, and so came from `unisono_alloc`.
        let memory = unsafe { Box::from_raw(memory) };
        memory.owner.free(memory);
    }
}
