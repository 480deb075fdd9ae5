//! Primary contexts: one per device, current on a thread, with a sticky error.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::errors::{Failure, Out, Status, give, status};
use crate::handles::Handles;
use crate::stream::{STREAMS, Stream};
use crate::{device, event, memory};

/// A primary context of a device, from the first retain to the last release.
pub(crate) struct Context {
    pub(crate) handle: usize,
    pub(crate) device: c_int,
    /// The sticky error, or 0.
    failure: AtomicU32,
    is_destroyed: AtomicBool,
    default_stream: Mutex<Option<Arc<Stream>>>,
}

static CONTEXTS: Handles<Context> = Handles::beginning_at(0x100_0000);

/// The retained contexts by device, with their reference counts.
static RETAINED: Mutex<Vec<(Arc<Context>, usize)>> = Mutex::new(Vec::new());

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

impl Context {
    /// Makes everything in this context fail with this error from now on.
    pub(crate) fn fail(&self, failure: Failure) {
        // The first error is kept.
        let _ = self.failure.compare_exchange(0, failure.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns the sticky error, if there is one.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.is_destroyed.load(Ordering::Acquire) {
            return Err(Failure::CONTEXT_IS_DESTROYED);
        }
        match self.failure.load(Ordering::Acquire) {
            0 => Ok(()),
            failure => Err(Failure(failure)),
        }
    }

    /// The stream with the handle 0.
    pub(crate) fn default_stream(self: &Arc<Self>) -> Arc<Stream> {
        let mut stream = self.default_stream.lock().unwrap();
        Arc::clone(stream.get_or_insert_with(|| Stream::begin(Arc::clone(self))))
    }

    /// Waits for all streams to complete what is queued now.
    fn synchronize(self: &Arc<Self>) {
        // These include the default stream, if it was used.
        let streams = STREAMS.all_where(|stream| Arc::ptr_eq(&stream.context, self));
        streams.iter().for_each(|one| one.synchronize());
    }

    /// Invalidates everything in the context. Operations in progress are completed.
    fn destroy(&self) {
        self.is_destroyed.store(true, Ordering::Release);
        let streams = STREAMS.remove_where(|stream| stream.context.handle == self.handle);
        streams.iter().for_each(|stream| stream.close());
        // The stream and the context refer to each other.
        self.default_stream.lock().unwrap().take();
        event::forget(self.handle);
        memory::forget(self.handle);
    }
}

/// The context that is current on this thread, unless it has failed.
pub(crate) fn current() -> Result<Arc<Context>, Failure> {
    let context = CONTEXTS.get(CURRENT.get()).map_err(|_| match CURRENT.get() {
        0 => Failure::INVALID_CONTEXT,
        _ => Failure::CONTEXT_IS_DESTROYED,
    })?;
    context.check()?;
    Ok(context)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(handle: Out<'_, usize>, device: c_int) -> Status {
    status(device::physical(device).and_then(|_| {
        let mut retained = RETAINED.lock().unwrap();
        let held = retained.iter().position(|(context, _)| context.device == device);
        let held = held.unwrap_or_else(|| {
            let context = CONTEXTS.add(|handle| {
                let (failure, is_destroyed) = (AtomicU32::new(0), AtomicBool::new(false));
                Context { handle, device, failure, is_destroyed, default_stream: Mutex::default() }
            });
            retained.push((context, 0));
            retained.len() - 1
        });
        retained[held].1 += 1;
        give(handle, retained[held].0.handle)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Status {
    let mut retained = RETAINED.lock().unwrap();
    let Some(held) = retained.iter().position(|(context, _)| context.device == device) else {
        return Failure::INVALID_CONTEXT.0;
    };
    retained[held].1 -= 1;
    if retained[held].1 == 0 {
        let (context, _) = retained.swap_remove(held);
        CONTEXTS.remove_where(|other| other.handle == context.handle);
        context.destroy();
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(handle: Out<'_, usize>) -> Status {
    status(give(handle, CURRENT.get()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(handle: usize) -> Status {
    if handle != 0 && CONTEXTS.get(handle).is_err() {
        return Failure::INVALID_CONTEXT.0;
    }
    CURRENT.set(handle);
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<'_, c_int>) -> Status {
    status(current().and_then(|context| give(device, context.device)))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Status {
    status(current().and_then(|context| {
        context.synchronize();
        context.check()
    }))
}
