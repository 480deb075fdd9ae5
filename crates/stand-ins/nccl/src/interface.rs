//! NCCL's functions on communicators.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::area::MOST_RANKS;
use crate::collective::{Call, Collective};
use crate::communicator::Communicator;
use crate::group;
use crate::id::UniqueId;
use crate::reduction::{DataType, Operator};
use crate::results::{Fault, Kind, Status, give, last_message, status};
use crate::settings::SETTINGS;

/// The beginning of NCCL's `ncclConfig_t`.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

const MAGIC: c_uint = 0xcafe_beef;
const UNDEFINED: c_int = c_int::MIN;

fn invalid<T>(message: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::new(Kind::InvalidArgument, message))
}

/// Reads whether the communicator blocks.
///
/// # Safety
/// The pointer must be null, or point to NCCL's `ncclConfig_t`.
unsafe fn blocks(config: *const Config) -> Result<bool, Fault> {
    // SAFETY: as the caller promises.
    let Some(config) = (unsafe { config.as_ref() }) else { return Ok(true) };
    if config.magic != MAGIC || config.size < size_of::<Config>() || config.version == 0 {
        return invalid("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    }
    match config.blocking {
        UNDEFINED | 1 => Ok(true),
        0 => Ok(false),
        other => invalid(format!("blocking is {other}, but should be 0 or 1")),
    }
}

/// NCCL's `ncclGetVersion`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller of this C function passes an address that is null or valid for the result.
    status(unsafe { give(version, SETTINGS.version) })
}

/// NCCL's `ncclGetLastError`: the communicator's, or else the last one of this process.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(communicator: usize) -> *const c_char {
    let fault = Communicator::of_handle(communicator).ok().and_then(|one| one.fault());
    fault.map_or_else(last_message, |fault| fault.keep_message())
}

/// NCCL's `ncclCommInitRankConfig`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    handle: *mut usize,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> Status {
    let created = || {
        // SAFETY: as in `ncclGetVersion`.
        unsafe { give(handle, 0) }?;
        // SAFETY: the caller of this C function passes null or a configuration.
        let is_blocking = unsafe { blocks(config) }?;
        if !(1..=MOST_RANKS as c_int).contains(&ranks) || !(0..ranks).contains(&rank) {
            return invalid(format!(
                "rank {rank} of {ranks}; the stand-in supports up to {MOST_RANKS} ranks"
            ));
        }
        if SETTINGS.refused == Some(rank) {
            return Err(Fault::new(Kind::SystemError, format!("rank {rank} is refused")));
        }
        let communicator = Communicator::begin(id, rank as usize, ranks as usize, is_blocking)?;
        // SAFETY: as in `ncclGetVersion`.
        unsafe { give(handle, communicator.handle) }?;
        group::created(communicator.clone()).inspect_err(|fault| {
            if fault.kind != Kind::InProgress {
                communicator.forget();
                // SAFETY: as in `ncclGetVersion`; it was written to before.
                unsafe { handle.write(0) };
            }
        })
    };
    status(created())
}

/// NCCL's `ncclCommFinalize`.
#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(communicator: usize) -> Status {
    status(Communicator::of_handle(communicator).and_then(|communicator| communicator.finalize()))
}

/// NCCL's `ncclCommDestroy`, which finalises if needed, and waits.
#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(communicator: usize) -> Status {
    status(Communicator::of_handle(communicator).and_then(|communicator| {
        let settled = communicator.settle();
        if settled.is_ok() && !communicator.is_finalized() {
            // Waits even if the communicator is non-blocking: the result is known only when it has settled.
            let _ = communicator.finalize();
        }
        communicator.forget();
        settled.and_then(|()| communicator.settle())
    }))
}

/// NCCL's `ncclCommAbort`.
#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(communicator: usize) -> Status {
    status(Communicator::of_handle(communicator).map(|communicator| {
        communicator.forget();
        communicator.abort();
    }))
}

/// NCCL's `ncclCommGetAsyncError`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(communicator: usize, error: *mut Status) -> Status {
    status(Communicator::of_handle(communicator).and_then(|communicator| {
        let state = communicator.progress().map_or_else(|fault| fault.kind as Status, |()| 0);
        // SAFETY: as in `ncclGetVersion`.
        unsafe { give(error, state) }
    }))
}

/// Writes a property of a ready communicator.
///
/// # Safety
/// The pointer must be null, or valid for a write.
unsafe fn about(handle: usize, to: *mut c_int, what: impl Fn(&Communicator) -> c_int) -> Status {
    status(Communicator::of_handle(handle).and_then(|communicator| {
        communicator.ready()?;
        // SAFETY: as the caller promises.
        unsafe { give(to, what(&communicator)) }
    }))
}

/// NCCL's `ncclCommCount`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCount(communicator: usize, count: *mut c_int) -> Status {
    // SAFETY: as in `ncclGetVersion`.
    unsafe { about(communicator, count, |communicator| communicator.ranks as c_int) }
}

/// NCCL's `ncclCommUserRank`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommUserRank(communicator: usize, rank: *mut c_int) -> Status {
    // SAFETY: as in `ncclGetVersion`.
    unsafe { about(communicator, rank, |communicator| communicator.rank as c_int) }
}

/// NCCL's `ncclCommCuDevice`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCuDevice(communicator: usize, device: *mut c_int) -> Status {
    // SAFETY: as in `ncclGetVersion`.
    unsafe { about(communicator, device, |communicator| communicator.place.device) }
}

/// The buffers of a call.
type Buffers = (*const c_void, *mut c_void);

/// Checks the arguments of a collective, and makes the call.
fn call(
    collective: Collective,
    (send, receive): Buffers,
    (count, dtype): (usize, c_int),
    op: Option<c_int>,
    root: c_int,
    (communicator, stream): (usize, usize),
) -> Status {
    let called = || {
        let communicator = Communicator::of_handle(communicator)?;
        communicator.ready()?;
        let Some(dtype) = DataType::from_number(dtype) else {
            return invalid(format!("the stand-in does not support data type {dtype}"));
        };
        let op = match op.map(Operator::from_number) {
            Some(None) => return invalid("the stand-in does not support this operator"),
            Some(op) => op,
            None => None,
        };
        if !(0..communicator.ranks as c_int).contains(&root) {
            return invalid(format!("root {root} of {} ranks", communicator.ranks));
        }
        if count.checked_mul(dtype.bytes() * communicator.ranks).is_none() {
            return invalid(format!("{count} elements are too many"));
        }
        let (send, receive, root) = (send as u64, receive as u64, root as usize);
        group::call(communicator, Call { collective, send, receive, count, dtype, op, root, stream })
    };
    status(called())
}

/// NCCL's `ncclAllReduce`.
#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    communicator: usize,
    stream: usize,
) -> Status {
    let (buffers, elements, place) = ((send, receive), (count, dtype), (communicator, stream));
    call(Collective::AllReduce, buffers, elements, Some(op), 0, place)
}

/// NCCL's `ncclReduce`.
#[unsafe(no_mangle)]
extern "C" fn ncclReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    communicator: usize,
    stream: usize,
) -> Status {
    let (buffers, elements, place) = ((send, receive), (count, dtype), (communicator, stream));
    call(Collective::Reduce, buffers, elements, Some(op), root, place)
}

/// NCCL's `ncclBroadcast`.
#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    communicator: usize,
    stream: usize,
) -> Status {
    let (buffers, elements, place) = ((send, receive), (count, dtype), (communicator, stream));
    call(Collective::Broadcast, buffers, elements, None, root, place)
}

/// NCCL's `ncclReduceScatter`.
#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    communicator: usize,
    stream: usize,
) -> Status {
    let (buffers, elements, place) = ((send, receive), (count, dtype), (communicator, stream));
    call(Collective::ReduceScatter, buffers, elements, Some(op), 0, place)
}

/// NCCL's `ncclAllGather`.
#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    communicator: usize,
    stream: usize,
) -> Status {
    let (buffers, elements, place) = ((send, receive), (count, dtype), (communicator, stream));
    call(Collective::AllGather, buffers, elements, None, 0, place)
}
