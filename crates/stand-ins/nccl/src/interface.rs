//! NCCL's functions on communicators.

use std::ffi::{c_char, c_int, c_uint};

use crate::area::MOST_RANKS;
use crate::collective::{Call, Collective};
use crate::communicator::Communicator;
use crate::group;
use crate::id::UniqueId;
use crate::reduction::{DataType, Operator};
use crate::results::{Fault, Kind, Out, Status, give, last_message, status};
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

fn blocks(config: Option<&Config>) -> Result<bool, Fault> {
    let Some(config) = config else { return Ok(true) };
    if config.magic != MAGIC || config.size < size_of::<Config>() || config.version == 0 {
        return Err(Fault::invalid("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER"));
    }
    match config.blocking {
        UNDEFINED | 1 => Ok(true),
        0 => Ok(false),
        other => Err(Fault::invalid(format!("blocking is {other}, but should be 0 or 1"))),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetVersion(version: Out<'_, c_int>) -> Status {
    status(give(version, SETTINGS.version))
}

/// Returns the communicator's last error, or else the last one of this process.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(communicator: usize) -> *const c_char {
    let fault = Communicator::of_handle(communicator).ok().and_then(|one| one.fault());
    fault.map_or_else(last_message, |fault| fault.keep_message())
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    handle: Out<'_, usize>,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: Option<&Config>,
) -> Status {
    let created = || {
        let handle = give(handle, 0)?;
        let is_blocking = blocks(config)?;
        if !(1..=MOST_RANKS as c_int).contains(&ranks) || !(0..ranks).contains(&rank) {
            let limit = format!("the stand-in supports up to {MOST_RANKS} ranks");
            return Err(Fault::invalid(format!("rank {rank} of {ranks}; {limit}")));
        }
        if SETTINGS.refused == Some(rank) {
            return Err(Fault::new(Kind::SystemError, format!("rank {rank} is refused")));
        }
        let communicator = Communicator::begin(id, rank as usize, ranks as usize, is_blocking)?;
        *handle = communicator.handle;
        group::created(communicator.clone()).inspect_err(|fault| {
            if fault.kind != Kind::InProgress {
                communicator.forget();
                *handle = 0;
            }
        })
    };
    status(created())
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(communicator: usize) -> Status {
    status(Communicator::of_handle(communicator).and_then(|communicator| communicator.finalize()))
}

/// Finalises if needed, and waits.
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

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(communicator: usize) -> Status {
    status(Communicator::of_handle(communicator).map(|communicator| {
        communicator.forget();
        communicator.abort();
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommGetAsyncError(communicator: usize, error: Out<'_, Status>) -> Status {
    status(Communicator::of_handle(communicator).and_then(|communicator| {
        give(error, communicator.progress().map_or_else(|fault| fault.kind as Status, |()| 0))
    }))
}

/// Writes a property of a ready communicator.
fn about(handle: usize, to: Out<'_, c_int>, what: impl Fn(&Communicator) -> c_int) -> Status {
    status(Communicator::of_handle(handle).and_then(|communicator| {
        communicator.ready()?;
        give(to, what(&communicator))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCount(communicator: usize, count: Out<'_, c_int>) -> Status {
    about(communicator, count, |communicator| communicator.ranks as c_int)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommUserRank(communicator: usize, rank: Out<'_, c_int>) -> Status {
    about(communicator, rank, |communicator| communicator.rank as c_int)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCuDevice(communicator: usize, device: Out<'_, c_int>) -> Status {
    about(communicator, device, |communicator| communicator.place.device)
}

/// Checks the arguments of a collective, and makes the call. The buffers are addresses of the device.
fn call(
    collective: Collective,
    (send, receive): (u64, u64),
    (count, dtype): (usize, c_int),
    op: Option<c_int>,
    root: c_int,
    (communicator, stream): (usize, usize),
) -> Status {
    let called = || {
        let communicator = Communicator::of_handle(communicator)?;
        communicator.ready()?;
        let unsupported = || Fault::invalid(format!("the stand-in does not support data type {dtype}"));
        let dtype = DataType::from_number(dtype).ok_or_else(unsupported)?;
        let unsupported = || Fault::invalid("the stand-in does not support this operator");
        let op = op.map(|op| Operator::from_number(op).ok_or_else(unsupported)).transpose()?;
        if !(0..communicator.ranks as c_int).contains(&root) {
            return Err(Fault::invalid(format!("root {root} of {} ranks", communicator.ranks)));
        }
        if count.checked_mul(dtype.bytes * communicator.ranks).is_none() {
            return Err(Fault::invalid(format!("{count} elements are too many")));
        }
        let root = root as usize;
        group::call(communicator, Call { collective, send, receive, count, dtype, op, root, stream })
    };
    status(called())
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    send: u64,
    receive: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    communicator: usize,
    stream: usize,
) -> Status {
    call(Collective::AllReduce, (send, receive), (count, dtype), Some(op), 0, (communicator, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduce(
    send: u64,
    receive: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    communicator: usize,
    stream: usize,
) -> Status {
    call(Collective::Reduce, (send, receive), (count, dtype), Some(op), root, (communicator, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    send: u64,
    receive: u64,
    count: usize,
    dtype: c_int,
    root: c_int,
    communicator: usize,
    stream: usize,
) -> Status {
    call(Collective::Broadcast, (send, receive), (count, dtype), None, root, (communicator, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    send: u64,
    receive: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    communicator: usize,
    stream: usize,
) -> Status {
    call(Collective::ReduceScatter, (send, receive), (count, dtype), Some(op), 0, (communicator, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    send: u64,
    receive: u64,
    count: usize,
    dtype: c_int,
    communicator: usize,
    stream: usize,
) -> Status {
    call(Collective::AllGather, (send, receive), (count, dtype), None, 0, (communicator, stream))
}
