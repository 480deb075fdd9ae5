//! Compressors: all-reduces that send fewer bytes between nodes.

use std::ffi::{c_char, c_float, c_int};

use unisono_bindings::{Owner, arguments};
use unisono_compress::{Compression, Levels, UnknownCompression};

use super::comm::{Comm, on_handle, out, required_text};
use super::errors::{Result, argument, guarded};
use super::values::{lent, list};

/// Sums arrays of fixed size and meaning, such as the gradients of some parameters, with fewer bytes between nodes. The residual,
/// which a call does not send, is added in the next call.
#[derive(Debug)]
pub struct Compressor {
    inner: unisono_compress::Compressor,
    count: usize,
    /// The number of its communicator.
    comm: u64,
    owner: Owner,
}

/// Returns the compressor of a handle.
///
/// # Safety
/// The handle must be null or live.
unsafe fn live<'a>(compressor: *const Compressor) -> Result<&'a Compressor> {
    // SAFETY: as the caller promises.
    let compressor = unsafe { compressor.as_ref() }.ok_or_else(|| argument("the compressor is NULL"))?;
    compressor.owner.check().map_err(argument)?;
    Ok(compressor)
}

/// Creates a compressor of an array of `tensors` matrices, row-major and one after the other. A vector has one column. The format
/// is "int8", "int4", "onebit", "topk:FRACTION", "threshold:MAGNITUDE" or "powersgd:RANK"; the suffix ":stochastic" of "int8" or
/// "int4" selects stochastic rounding. All ranks call it, with the same arguments.
///
/// # Safety
/// The handle must be live, the format a string, the lists of `tensors` sizes each, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_compressor_create(
    comm: *mut Comm,
    format: *const c_char,
    rows: *const usize,
    columns: *const usize,
    tensors: usize,
    compressor: *mut *mut Compressor,
) -> c_int {
    let body = |comm: &mut Comm| {
        let Comm { inner: comm, levels, number, .. } = comm;
        // SAFETY: as the caller promises, for both.
        let (place, format) =
            unsafe { (out(compressor, "the compressor")?, required_text(format, "the format")?) };
        let compression: Compression =
            format.parse().map_err(|error: UnknownCompression| argument(error.to_string()))?;
        // SAFETY: as the caller promises.
        let (rows, columns) = unsafe { (list(rows, tensors, "rows")?, list(columns, tensors, "columns")?) };
        let shapes: Vec<_> = rows.iter().zip(columns).map(|(&rows, &columns)| [rows, columns]).collect();
        let shapes: Vec<_> =
            shapes.iter().map(|shape| if shape[1] == 1 { &shape[..1] } else { &shape[..] }).collect();
        let count = arguments::elements(&shapes).map_err(argument)?;
        compression.check(count).map_err(argument)?;
        let levels = match levels {
            Some(levels) => levels,
            None => levels.insert(Levels::of(comm)?),
        };
        let inner = unisono_compress::Compressor::new(levels, compression, &shapes);
        let owner = Owner::this_process();
        *place = Box::into_raw(Box::new(Compressor { inner, count, comm: *number, owner }));
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { on_handle(comm, body) }
}

/// Leaves the sum of all ranks' arrays of `count` floats, the number of elements of the tensors, on every rank, with the same bits.
/// All ranks call it. `was_finite`, unless it is NULL, is set to whether all values were finite. Non-finite values corrupt the
/// residual.
///
/// # Safety
/// The handles must be live, the array of `count` floats that the program does not access until the call is done, and the pointer
/// null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_compress_all_reduce(
    comm: *mut Comm,
    compressor: *const Compressor,
    data: *mut c_float,
    count: usize,
    was_finite: *mut c_int,
) -> c_int {
    let body = |comm: &mut Comm| {
        // SAFETY: as the caller promises.
        let compressor = unsafe { live(compressor)? };
        comm.check_number(compressor.comm, "compressor")?;
        if count != compressor.count {
            let of = compressor.count;
            return Err(argument(format!("the array has {count} floats, and the compressor sums {of}")));
        }
        // SAFETY: as the caller promises.
        let mut values = unsafe { lent::<f32>(data.cast(), count)? };
        compressor.inner.all_reduce(&mut comm.inner, &mut values)?;
        // SAFETY: as the caller promises.
        if let Some(place) = unsafe { was_finite.as_mut() } {
            *place = c_int::from(compressor.inner.was_finite());
        }
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { on_handle(comm, body) }
}

/// Returns the number of floats that `unisono_compressor_save` writes; 0 for NULL.
///
/// # Safety
/// The handle must be null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_compressor_state_count(compressor: *const Compressor) -> usize {
    // SAFETY: as the caller promises.
    unsafe { live(compressor) }.map_or(0, |compressor| state(compressor).len())
}

/// Returns the residual of this rank, followed by the state of the encoding.
fn state(compressor: &Compressor) -> Vec<f32> {
    let encoder = compressor.inner.encoder_state().into_iter().flatten();
    compressor.inner.residual().into_iter().chain(encoder).collect()
}

/// Writes the residual of this rank and the state of the encoding, `count` floats as returned by `unisono_compressor_state_count`.
/// Every rank saves and loads its own.
///
/// # Safety
/// The handle must be live, and the array of `count` floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_compressor_save(
    compressor: *const Compressor,
    floats: *mut c_float,
    count: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (compressor, mut place) = unsafe { (live(compressor)?, lent::<f32>(floats.cast(), count)?) };
        let state = state(compressor);
        check_count(count, state.len())?;
        place.copy_from_slice(&state);
        Ok(())
    })
}

/// Restores the state that `unisono_compressor_save` of a compressor with the same arguments wrote.
///
/// # Safety
/// As `unisono_compressor_save`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_compressor_load(
    compressor: *const Compressor,
    floats: *const c_float,
    count: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises. The array is only read.
        let (compressor, saved) =
            unsafe { (live(compressor)?, lent::<f32>(floats.cast_mut().cast(), count)?) };
        check_count(count, state(compressor).len())?;
        let (residual, mut rest) = saved.split_at(compressor.count);
        let mut encoder_state = compressor.inner.encoder_state();
        for tensor in &mut encoder_state {
            let (own, others) = rest.split_at(tensor.len());
            tensor.copy_from_slice(own);
            rest = others;
        }
        compressor.inner.restore(residual, &encoder_state);
        Ok(())
    })
}

fn check_count(found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(argument(format!("{found} floats of state, where the compressor has {expected}")))
}

/// Frees a compressor, before or after its communicator, and not while a call uses it. NULL is ignored.
///
/// # Safety
/// The handle must be null or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_compressor_free(compressor: *mut Compressor) {
    if !compressor.is_null() {
        // SAFETY: the handle is live, as the caller promises, and so came from `unisono_compressor_create`.
        let compressor = unsafe { Box::from_raw(compressor) };
        compressor.owner.free(compressor);
    }
}
