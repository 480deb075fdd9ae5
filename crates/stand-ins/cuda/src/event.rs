//! Events: positions in a stream.

use std::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex};

use crate::context::{self, Context};
use crate::errors::{Failure, Out, Status, give, status};
use crate::handles::Handles;
use crate::stream::{self, Operation};

/// One record of an event. Each record has its own, so that a wait for one is not ended by a later one.
#[derive(Default)]
pub(crate) struct Moment {
    is_reached: Mutex<bool>,
    changed: Condvar,
}

impl Moment {
    pub(crate) fn reach(&self) {
        *self.is_reached.lock().unwrap() = true;
        self.changed.notify_all();
    }

    /// Waits until the stream has reached it, which happens even after an error.
    pub(crate) fn wait(&self) {
        let is_reached = self.is_reached.lock().unwrap();
        drop(self.changed.wait_while(is_reached, |is_reached| !*is_reached).unwrap());
    }

    fn is_reached(&self) -> bool {
        *self.is_reached.lock().unwrap()
    }
}

struct Event {
    handle: usize,
    context: Arc<Context>,
    /// The latest record.
    moment: Mutex<Option<Arc<Moment>>>,
}

static EVENTS: Handles<Event> = Handles::beginning_at(0x300_0000);

impl Event {
    fn moment(&self) -> Option<Arc<Moment>> {
        self.moment.lock().unwrap().clone()
    }
}

/// Removes all events of a context.
pub(crate) fn forget(context: usize) {
    EVENTS.remove_where(|event| event.context.handle == context);
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(handle: Out<'_, usize>, _flags: c_uint) -> Status {
    status(context::current().and_then(|context| {
        let event = EVENTS.add(|handle| Event { handle, context, moment: Mutex::default() });
        give(handle, event.handle)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> Status {
    status(EVENTS.remove(event).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> Status {
    status(EVENTS.get(event).and_then(|event| {
        let stream = stream::usable(stream)?;
        if !Arc::ptr_eq(&stream.context, &event.context) {
            return Err(Failure::INVALID_HANDLE);
        }
        let moment = Arc::new(Moment::default());
        *event.moment.lock().unwrap() = Some(Arc::clone(&moment));
        stream.enqueue(Operation::Reach(moment));
        Ok(())
    }))
}

/// Waits for the latest record; an event never recorded is complete.
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> Status {
    status(EVENTS.get(event).and_then(|event| {
        let stream = stream::usable(stream)?;
        if let Some(moment) = event.moment() {
            stream.enqueue(Operation::Wait(moment));
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> Status {
    status(EVENTS.get(event).and_then(|event| {
        // Read before the error: an error that precedes the event must be visible once the event is complete.
        let is_complete = event.moment().is_none_or(|moment| moment.is_reached());
        event.context.check()?;
        if is_complete { Ok(()) } else { Err(Failure::NOT_READY) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: usize) -> Status {
    status(EVENTS.get(event).and_then(|event| {
        if let Some(moment) = event.moment() {
            moment.wait();
        }
        event.context.check()
    }))
}
