//! Collectives on arrays in GPU memory.
//!
//! All work in place, on `count` elements at `data`, in memory that CUDA has allocated on the GPU of this rank. They are ordered on
//! `stream`, a `cudaStream_t` or `CUstream`, where NULL is the default stream: after the work that is queued now, and before later
//! work. When a function returns, the GPU may still be working. The host waits for it with `unisono_gpu_synchronize`, which has a
//! deadline and reports failures of other ranks. `cudaStreamSynchronize` would wait for ever for a missing rank, and the contents
//! of the array afterwards are only valid if no rank has failed.
//!
//! On one node, NCCL carries out the calls; other calls go through the host.

use std::ffi::{c_int, c_void};

use unisono::{Communicator, Operation, with_type};
use unisono_bindings::device::{self, OnGpu};

use super::collectives::{Array, checked, collective};
use super::comm::{Comm, on};
use super::exported::exported;
use super::options::{self, Call};

/// # Safety
/// The handle must be null or live; the array must be one on a GPU, and live with the stream until the stream is done; and the
/// options must be as [`options::call`] requires.
unsafe fn ordered(
    comm: *mut Comm,
    array: Array,
    stream: *mut c_void,
    options: *const Call,
    operation: Operation,
    op: Option<c_int>,
) -> c_int {
    let body = |comm: &mut Communicator| {
        let collective = collective(comm, operation, op)?;
        // SAFETY: as the caller promises.
        let dtype = unsafe { checked(comm, array, collective, options)? };
        let (address, stream) = (array.data.expose_provenance(), stream.expose_provenance());
        let on_gpu = OnGpu { address, count: array.count, stream };
        with_type!(dtype, T => {
            // SAFETY: as the caller promises, for the array, the stream and the options.
            unsafe { options::call(comm, options, None, |comm| collective.on_gpu::<T>(comm, on_gpu)) }
        })
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Exports collectives whose arguments include their reduction and their root.
macro_rules! on_gpu {
    ($($(#[doc = $doc:expr])* $name:ident($($argument:ident),*) = $operation:expr, $op:expr;)*) => {
        exported! {$(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// The handle must be live, the array one of `count` elements in GPU memory that lives, as the stream does, until the stream
            /// is done, and the options null or valid.
            fn $name(
                comm: *mut Comm,
                data: *mut c_void,
                count: usize,
                dtype: c_int,
                $($argument: c_int,)*
                stream: *mut c_void,
                options: *const Call,
            ) {
                // SAFETY: as the caller promises.
                unsafe { ordered(comm, Array { data, count, dtype }, stream, options, $operation, $op) }
            }
        )*}
    };
}

on_gpu! {
    /// Leaves the reduction of all arrays in GPU memory on every rank, ordered on the stream.
    unisono_gpu_all_reduce(op) = Operation::AllReduce, Some(op);

    /// Leaves the reduction of all arrays in GPU memory on the root, ordered on the stream; the other arrays are undefined.
    unisono_gpu_reduce(op, root) = Operation::Reduce { root: root as usize }, Some(op);

    /// Copies the root's array in GPU memory to every rank, ordered on the stream.
    unisono_gpu_broadcast(root) = Operation::Broadcast { root: root as usize }, None;

    /// Leaves on every rank its own part of the reduction of all arrays in GPU memory (`unisono_own_part`), ordered on the stream; the rest
    /// of the array is undefined.
    unisono_gpu_reduce_scatter(op) = Operation::ReduceScatter, Some(op);

    /// Every rank contributes its own part of the array in GPU memory (`unisono_own_part`) and ends with all parts, ordered on the stream.
    unisono_gpu_all_gather() = Operation::AllGather, None;
}

/// Orders the streams of all ranks: work that is queued on the stream from now on begins when the work that each rank has queued on
/// its own stream is done. The host does not wait.
///
/// # Safety
/// The handle must be live, the stream one of the thread's current GPU, and the options null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_gpu_barrier(
    comm: *mut Comm,
    stream: *mut c_void,
    options: *const Call,
) -> c_int {
    let body = |comm: &mut Communicator| {
        // SAFETY: as the caller promises.
        unsafe {
            options::call_whole(comm, options, |comm| device::barrier(comm, stream.expose_provenance()))
        }
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}

/// Waits until the work now queued on the stream is done: with the deadline of a call, and with an error that names the rank if a rank
/// fails or does not make its calls. Use it in place of `cudaStreamSynchronize`, which would wait for ever.
///
/// # Safety
/// The handle must be live, the stream one of the thread's current GPU, and the options null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_gpu_synchronize(
    comm: *mut Comm,
    stream: *mut c_void,
    options: *const Call,
) -> c_int {
    let body = |comm: &mut Communicator| {
        // SAFETY: as the caller promises.
        unsafe {
            options::call_whole(comm, options, |comm| device::synchronize(comm, stream.expose_provenance()))
        }
    };
    // SAFETY: as the caller promises.
    unsafe { on(comm, body) }
}
