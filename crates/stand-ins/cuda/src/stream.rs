//! Streams: queues, each with a thread of its own.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use fastrand::Rng;

use crate::context::{self, Context};
use crate::copy::Copy;
use crate::errors::{Failure, Out, Status, give, status};
use crate::event::Moment;
use crate::handles::Handles;
use crate::memory::{self, Allocation};
use crate::settings::SETTINGS;

pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

pub(crate) enum Operation {
    Reach(Arc<Moment>),
    Wait(Arc<Moment>),
    Copy(Copy),
    Fill { address: u64, byte: u8, bytes: usize },
    Begin(Arc<Allocation>),
    End(Arc<Allocation>),
    Call(HostFunction, Argument),
}

pub(crate) struct Argument(*mut c_void);

// SAFETY: it is only passed on; its meaning is between the caller and its function.
unsafe impl Send for Argument {}

pub(crate) struct Stream {
    handle: usize,
    pub(crate) context: Arc<Context>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    operations: VecDeque<Operation>,
    /// The number of operations ever enqueued, and the number done.
    enqueued: u64,
    done: u64,
    is_closed: bool,
}

pub(crate) static STREAMS: Handles<Stream> = Handles::beginning_at(0x200_0000);

thread_local! {
    /// The context of the stream that runs on this thread.
    static HERE: OnceCell<Arc<Context>> = const { OnceCell::new() };
    /// This thread's default streams, by context.
    static PER_THREAD: RefCell<BTreeMap<usize, Arc<Stream>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Returns the context of the stream that runs on this thread, if any.
pub(crate) fn context_here() -> Option<Arc<Context>> {
    HERE.with(|context| context.get().cloned())
}

impl Stream {
    /// Creates a stream with its thread.
    pub(crate) fn begin(context: Arc<Context>) -> Arc<Self> {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let stream = STREAMS.add(|handle| Self { handle, context, queue, changed });
        let running = Arc::clone(&stream);
        let thread = thread::Builder::new().name(format!("stream {:x}", stream.handle));
        // The thread ends when the stream is closed, or with the process, which does not wait for it.
        thread.spawn(move || running.run()).expect("a thread for a stream");
        stream
    }

    pub(crate) fn enqueue(&self, operation: Operation) {
        let mut queue = self.queue.lock().unwrap();
        queue.operations.push_back(operation);
        queue.enqueued += 1;
        self.changed.notify_all();
    }

    /// Waits until all operations enqueued so far are done.
    pub(crate) fn synchronize(&self) {
        let queue = self.queue.lock().unwrap();
        let last = queue.enqueued;
        drop(self.changed.wait_while(queue, |queue| queue.done < last).unwrap());
    }

    /// Ends the thread once all operations are done.
    pub(crate) fn close(&self) {
        self.queue.lock().unwrap().is_closed = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        HERE.with(|here| assert!(here.set(Arc::clone(&self.context)).is_ok(), "a thread runs one stream"));
        let mut random = Rng::with_seed(SETTINGS.seed ^ (self.handle as u64).rotate_left(32));
        while let Some(operation) = self.next() {
            let bytes = match &operation {
                Operation::Copy(copy) => copy.bytes,
                _ => 0,
            };
            delay(&mut random, bytes);
            // After an error, operations are skipped, but waits must still end.
            if self.context.check().is_ok()
                || matches!(operation, Operation::Reach(_) | Operation::Wait(_) | Operation::End(_))
            {
                operation.run().unwrap_or_else(|failure| self.context.fail(failure));
            }
            self.queue.lock().unwrap().done += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Operation> {
        let queue = self.queue.lock().unwrap();
        let idle = |queue: &mut Queue| queue.operations.is_empty() && !queue.is_closed;
        self.changed.wait_while(queue, idle).unwrap().operations.pop_front()
    }
}

impl Operation {
    fn run(self) -> Result<(), Failure> {
        match self {
            Self::Reach(moment) => moment.reach(),
            Self::Wait(moment) => moment.wait(),
            Self::Copy(copy) => return copy.run(),
            Self::Fill { address, byte, bytes } => {
                if bytes > 0 {
                    memory::find(address, bytes)?.fill(byte);
                }
            }
            Self::Begin(allocation) => allocation.begin(),
            Self::End(allocation) => memory::end(&allocation),
            // SAFETY: the caller of `cuLaunchHostFunc` promises that the function may be called with this argument.
            Self::Call(function, argument) => unsafe { function(argument.0) },
        }
        Ok(())
    }
}

/// Waits for a random time: mostly between zero and the mean; one in eight is up to nine times as long, so that a stream with more
/// work than another may still finish first. Longer for operations on many bytes.
fn delay(random: &mut Rng, bytes: usize) {
    let longest = if random.f64() < 0.125 { 9.0 } else { 1.0 };
    let copy = Duration::from_secs_f64(bytes as f64 * SETTINGS.seconds_per_byte);
    let delay = SETTINGS.delay.mul_f64(longest * random.f64()) + copy;
    if !delay.is_zero() {
        thread::sleep(delay);
    }
}

/// The stream of a handle. The default stream has two handles, and belongs to the current context. So does the per-thread default stream.
fn named(handle: usize) -> Result<Arc<Stream>, Failure> {
    match handle {
        0 | 1 => Ok(context::current()?.default_stream()),
        2 => {
            let context = context::current()?;
            let begin = || Stream::begin(Arc::clone(&context));
            Ok(PER_THREAD.with_borrow_mut(|all| Arc::clone(all.entry(context.handle).or_insert_with(begin))))
        }
        _ => STREAMS.get(handle),
    }
}

/// The stream of a handle, if operations of the current context may be enqueued.
pub(crate) fn usable(handle: usize) -> Result<Arc<Stream>, Failure> {
    let (stream, context) = (named(handle)?, context::current()?);
    if Arc::ptr_eq(&stream.context, &context) { Ok(stream) } else { Err(Failure::INVALID_HANDLE) }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(handle: Out<'_, usize>, _flags: c_uint) -> Status {
    status(context::current().and_then(|context| give(handle, Stream::begin(context).handle)))
}

/// Operations in the stream are still executed.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> Status {
    status(STREAMS.remove(stream).map(|stream| stream.close()))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: usize, context: Out<'_, usize>) -> Status {
    status(named(stream).and_then(|stream| give(context, stream.context.handle)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: usize) -> Status {
    status(named(stream).and_then(|stream| {
        stream.synchronize();
        stream.context.check()
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: usize) -> Status {
    status(named(stream).and_then(|stream| {
        let queue = stream.queue.lock().unwrap();
        if queue.done < queue.enqueued { Err(Failure::NOT_READY) } else { stream.context.check() }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(
    stream: usize,
    function: Option<HostFunction>,
    argument: *mut c_void,
) -> Status {
    status(usable(stream).and_then(|stream| {
        let function = function.ok_or(Failure::INVALID_VALUE)?;
        stream.enqueue(Operation::Call(function, Argument(argument)));
        Ok(())
    }))
}
