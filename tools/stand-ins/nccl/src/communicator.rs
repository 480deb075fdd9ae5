//! Communicators: how they come to be, are used, fail and end.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::area::Area;
use crate::collective::Call;
use crate::driver::Place;
use crate::id::UniqueId;
use crate::results::{Fault, Kind, Stop};
use crate::settings::SETTINGS;

/// One rank of a communicator.
#[derive(Debug)]
pub(crate) struct Communicator {
    pub(crate) handle: usize,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) place: Place,
    pub(crate) is_blocking: bool,
    /// Once all ranks have joined.
    area: OnceLock<Area>,
    state: Mutex<State>,
    changed: Condvar,
    is_aborted: AtomicBool,
    /// How many collectives were put into streams.
    launched: AtomicU64,
    /// How many have ended. Who executes one holds the lock.
    ended: Mutex<u64>,
    next: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What is done in the background.
    jobs: usize,
    fault: Option<Fault>,
    is_finalized: bool,
}

/// Those that the caller has handles of, which are numbers: a stale one is found out and not followed.
static ALL: Mutex<BTreeMap<usize, Arc<Communicator>>> = Mutex::new(BTreeMap::new());

/// A collective on its way through a stream.
struct Launched {
    communicator: Arc<Communicator>,
    call: Call,
    number: u64,
}

impl Communicator {
    /// Begins to create one; the rest is a job in the background.
    pub(crate) fn begin(
        id: UniqueId,
        rank: usize,
        ranks: usize,
        is_blocking: bool,
    ) -> Result<Arc<Self>, Fault> {
        let place = Place::current()?;
        static LAST: AtomicUsize = AtomicUsize::new(0x400_0000);
        let handle = LAST.fetch_add(16, Ordering::Relaxed);
        let communicator = Arc::new(Self {
            handle,
            rank,
            ranks,
            place,
            is_blocking,
            area: OnceLock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
            is_aborted: AtomicBool::new(false),
            launched: AtomicU64::new(0),
            ended: Mutex::new(0),
            next: Condvar::new(),
        });
        ALL.lock().unwrap().insert(handle, Arc::clone(&communicator));
        communicator.begin_job();
        communicator.spawn(move |this| this.join(&id));
        Ok(communicator)
    }

    pub(crate) fn of_handle(handle: usize) -> Result<Arc<Self>, Fault> {
        let found = ALL.lock().unwrap().get(&handle).cloned();
        found.ok_or_else(|| Fault::new(Kind::InvalidArgument, format!("{handle:#x} is no communicator")))
    }

    /// The handle is no longer one.
    pub(crate) fn forget(&self) {
        ALL.lock().unwrap().remove(&self.handle);
    }

    fn join(&self, id: &UniqueId) -> Result<(), Stop> {
        let joined = id.open().and_then(|file| Area::join(&file, self.rank, self.ranks, self.place.uuid));
        let gathered = joined.map_err(Stop::from).and_then(|area| {
            area.gather(&self.is_aborted)?;
            Ok(area)
        });
        // Whether all have the memory now, or never will.
        id.forget();
        self.area.set(gathered?).expect("a communicator is created once");
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// From now on something is done in the background, until `end_job`.
    pub(crate) fn begin_job(&self) {
        self.state().jobs += 1;
    }

    pub(crate) fn end_job(&self, result: Result<(), Stop>) {
        self.note(result);
        self.state().jobs -= 1;
        self.changed.notify_all();
    }

    /// Does the rest of a job that was begun.
    fn spawn(self: &Arc<Self>, job: impl FnOnce(&Self) -> Result<(), Stop> + Send + 'static) {
        let this = Arc::clone(self);
        thread::spawn(move || this.end_job(job(&this)));
    }

    /// Keeps the first failure.
    fn note(&self, result: Result<(), Stop>) {
        if let Err(Stop::Failed(fault)) = result {
            self.state().fault.get_or_insert(fault);
        }
    }

    /// What it failed with.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.state().fault.clone()
    }

    /// Success, a failure, or that something is still being done in the background.
    pub(crate) fn progress(&self) -> Result<(), Fault> {
        let state = self.state();
        match &state.fault {
            Some(fault) => Err(fault.clone()),
            None if state.jobs > 0 => Err(Fault::in_progress()),
            None => Ok(()),
        }
    }

    /// Whether it may be used now.
    pub(crate) fn ready(&self) -> Result<(), Fault> {
        let progress = self.progress();
        if progress.as_ref().is_err_and(|fault| fault.kind == Kind::InProgress) {
            let message = "Attempt to use communicator before the previous operation returned ncclSuccess";
            return Err(Fault::new(Kind::InvalidArgument, message));
        }
        if progress.is_ok() && self.state().is_finalized {
            return Err(Fault::new(Kind::InvalidArgument, "the communicator is finalized"));
        }
        progress
    }

    /// Until nothing is done in the background; jobs have deadlines.
    pub(crate) fn settle(&self) -> Result<(), Fault> {
        drop(self.changed.wait_while(self.state(), |state| state.jobs > 0).unwrap());
        self.progress()
    }

    /// Begins to finalise: what was called is done, and all ranks say so.
    pub(crate) fn finalize(self: &Arc<Self>) -> Result<(), Fault> {
        self.ready()?;
        self.state().is_finalized = true;
        self.begin_job();
        self.spawn(|this| {
            this.drain()?;
            this.area.get().expect("it is ready").part(&this.is_aborted)
        });
        if self.is_blocking { self.settle() } else { Err(Fault::in_progress()) }
    }

    pub(crate) fn is_finalized(&self) -> bool {
        self.state().is_finalized
    }

    /// Until all collectives have ended.
    fn drain(&self) -> Result<(), Stop> {
        let all = self.launched.load(Ordering::Acquire);
        self.wait_for(|ended| ended >= all).map(|_| ())
    }

    /// Until this holds of the number of collectives that have ended. It stays as long as the lock is held.
    fn wait_for(&self, holds: impl Fn(u64) -> bool) -> Result<MutexGuard<'_, u64>, Stop> {
        let started = Instant::now();
        let mut ended = self.ended.lock().unwrap();
        loop {
            if self.is_aborted.load(Ordering::Acquire) {
                return Err(Stop::Aborted);
            }
            if holds(*ended) {
                return Ok(ended);
            }
            if started.elapsed() > SETTINGS.deadline {
                let message = "a stream did not come to an earlier collective of the communicator in time";
                return Err(Fault::new(Kind::RemoteError, message).into());
            }
            ended = self.next.wait_timeout(ended, Duration::from_millis(20)).unwrap().0;
        }
    }

    /// Whatever goes on ends at once, and later nothing touches anybody's buffers.
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
        self.next.notify_all();
        // What it was in the middle of has no say any more.
        let _ = self.settle();
        drop(self.ended.lock().unwrap());
    }

    /// Puts a collective into its stream.
    pub(crate) fn launch(self: &Arc<Self>, call: Call) -> Result<(), Stop> {
        if self.is_aborted.load(Ordering::Acquire) {
            return Err(Stop::Aborted);
        }
        let number = self.launched.fetch_add(1, Ordering::AcqRel);
        let launched = Box::into_raw(Box::new(Launched { communicator: Arc::clone(self), call, number }));
        self.place.launch(call.stream, run, launched.cast()).map_err(|fault| {
            // SAFETY: it is ours again, since nobody will run it.
            drop(unsafe { Box::from_raw(launched) });
            self.note(Err(fault.clone().into()));
            fault.into()
        })
    }

    fn execute(&self, call: &Call, number: u64) -> Result<(), Stop> {
        let mut ended = self.wait_for(|ended| ended == number)?;
        let done = match self.fault() {
            // Nothing more is done, and everybody has been told why.
            Some(_) => Ok(()),
            None => call.execute(self.area.get().expect("it is ready"), number, &self.is_aborted),
        };
        self.note(done);
        *ended += 1;
        self.next.notify_all();
        Ok(())
    }
}

/// What the stream calls.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: made by `launch` for this one call.
    let launched = unsafe { Box::from_raw(data.cast::<Launched>()) };
    let done = launched.communicator.execute(&launched.call, launched.number);
    launched.communicator.note(done);
}
