//! Settings of a world, and options of a call.

use std::ffi::{c_char, c_int};
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use unisono::{Builder, Choice, Communicator, OnFailure, Unisono};
use unisono_bindings::{NO_PARTS, arguments};

use super::comm::text;
use super::errors::{Result, argument};

/// Settings of a world. Set all bytes to 0, and then the fields that differ from the defaults. A null pointer selects the defaults.
/// Unset fields come from the environment (UNISONO_TIMEOUT_S and others).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Settings {
    /// The algorithm of all calls, such as "ring", or NULL for "auto". Identical on all ranks.
    pub algorithm: *const c_char,
    /// The file that `unisono tune` has written, or NULL. All ranks use rank 0's.
    pub tuning: *const c_char,
    /// The timeout of waits for another rank, in seconds; 0 for the default of 600.
    pub timeout_s: f64,
    /// 1: a failure is reported and ends all processes of the job, for which the library uses a thread and signal handlers. 0:
    /// functions return errors, and the library starts no thread, except for non-blocking calls.
    pub end_job: c_int,
    /// 1: the UNISONO_... variables of the environment are ignored.
    pub ignore_environment: c_int,
    /// 1: UNISONO_METRICS and UNISONO_TRACE have no effect on this world. An additional world needs it if its ranks have other numbers
    /// than in the first one, since a process would write to the files of another one.
    pub unobserved: c_int,
}

/// Options of one call. Set all bytes to 0, and then the fields that differ from those of the communicator. A null pointer selects
/// those of the communicator.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Call {
    /// The algorithm, or NULL. Identical on all ranks.
    pub algorithm: *const c_char,
    /// A name of the call in errors and warnings, or NULL. Identical on all ranks.
    pub label: *const c_char,
    /// The timeout of waits for another rank, in seconds, or 0.
    pub timeout_s: f64,
    /// The number of elements of each rank's part, one for each rank, of an all-gather, reduce-scatter, gather or scatter
    /// (`MPI_Allgatherv` and so on), or NULL for parts that differ by at most one element. Identical on all ranks.
    pub counts: *const usize,
    /// The tag of a message, 0 or more: a receive gets the earliest message of its sender with the same tag. Collectives ignore it.
    pub tag: c_int,
}

/// # Safety
/// The pointer must be null or to settings whose strings are null or strings.
pub(crate) unsafe fn builder(settings: *const Settings) -> Result<Builder> {
    // SAFETY: as the caller promises.
    let Some(settings) = (unsafe { settings.as_ref() }) else { return Ok(Unisono::builder()) };
    // SAFETY: as the caller promises.
    let (algorithm, tuning) =
        unsafe { (algorithm(settings.algorithm)?, text(settings.tuning, "the tuning file")?) };
    let timeout = timeout(settings.timeout_s)?;
    let on_failure = if settings.end_job == 0 { OnFailure::ReturnError } else { OnFailure::EndJob };
    let common = unisono_bindings::Settings { algorithm, tuning: tuning.map(PathBuf::from), timeout };
    let builder = common.builder().on_failure(on_failure);
    let builder = if settings.ignore_environment == 0 { builder } else { builder.ignore_environment() };
    Ok(if settings.unobserved == 0 { builder } else { builder.unobserved() })
}

/// Returns the number of elements of each rank's part, if the call sets them.
///
/// # Safety
/// The pointer must be null or to options that outlive the result, whose counts are null or one for each of `ranks` ranks.
pub(crate) unsafe fn counts<'a>(options: *const Call, ranks: usize) -> Option<&'a [usize]> {
    // SAFETY: as the caller promises.
    let counts = unsafe { options.as_ref()?.counts };
    // SAFETY: as the caller promises.
    (!counts.is_null()).then(|| unsafe { std::slice::from_raw_parts(counts, ranks) })
}

/// Makes a call without parts of ranks.
///
/// # Errors
/// If the options have counts, which such a call ignores on this rank but compares with other ranks.
///
/// # Safety
/// As [`call`].
pub(crate) unsafe fn call_whole<R>(
    comm: &mut Communicator,
    options: *const Call,
    make: impl FnOnce(&mut Communicator) -> unisono::Result<R>,
) -> Result<R> {
    // SAFETY: as the caller promises.
    match unsafe { options.as_ref() } {
        Some(options) if !options.counts.is_null() => Err(argument(NO_PARTS)),
        // SAFETY: as the caller promises.
        _ => unsafe { call(comm, options, None, make) },
    }
}

/// Makes a call with its options, and with elements of this many bytes if the reduction needs them.
///
/// # Safety
/// The pointer must be null or to options whose strings are null or strings, and whose counts are null or one for each rank.
pub(crate) unsafe fn call<R>(
    comm: &mut Communicator,
    options: *const Call,
    element_bytes: Option<NonZero<u16>>,
    make: impl FnOnce(&mut Communicator) -> unisono::Result<R>,
) -> Result<R> {
    // SAFETY: as the caller promises.
    let counts = unsafe { counts(options, comm.ranks()) };
    // SAFETY: as the caller promises.
    let Some(options) = (unsafe { options.as_ref() }) else {
        let Some(size) = element_bytes else { return Ok(make(comm)?) };
        return Ok(make(&mut comm.call().element_bytes(size))?);
    };
    // SAFETY: as the caller promises.
    let (algorithm, label) = unsafe { (algorithm(options.algorithm)?, text(options.label, "the label")?) };
    let timeout = timeout(options.timeout_s)?;
    let tag = u32::try_from(options.tag);
    let tag = tag.map_err(|_| argument(format!("the tag is {}: it must be 0 or more", options.tag)))?;
    let options = unisono_bindings::Options { algorithm, label, timeout, element_bytes, counts, tag };
    Ok(options.call(comm, make)?)
}

/// # Safety
/// The pointer must be null or a string.
unsafe fn algorithm(name: *const c_char) -> Result<Option<Choice>> {
    // SAFETY: as the caller promises.
    let name = unsafe { text(name, "the algorithm")? };
    name.map(|name| arguments::choice(name).map_err(argument)).transpose()
}

fn timeout(seconds: f64) -> Result<Option<Duration>> {
    if seconds == 0.0 {
        return Ok(None);
    }
    let timeout = arguments::timeout(seconds);
    timeout.map(Some).map_err(|wrong| argument(format!("{wrong}, or 0 for the default")))
}
