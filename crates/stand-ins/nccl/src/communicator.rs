//! Communicators: their creation, use, failure and end.

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
pub(crate) struct Communicator {
    pub(crate) handle: usize,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) place: Place,
    pub(crate) is_blocking: bool,
    /// Set once all ranks have joined.
    area: OnceLock<Area>,
    state: Mutex<State>,
    changed: Condvar,
    is_aborted: AtomicBool,
    launched: AtomicU64,
    /// The number of collectives that have ended. Held locked while one is executed.
    ended: Mutex<u64>,
    next: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: usize,
    fault: Option<Fault>,
    is_finalized: bool,
}

/// The communicators by handle. Handles are numbers, so that a stale one is detected and not dereferenced.
static ALL: Mutex<BTreeMap<usize, Arc<Communicator>>> = Mutex::new(BTreeMap::new());

struct Launched {
    communicator: Arc<Communicator>,
    call: Call,
    number: u64,
}

impl Communicator {
    /// Starts to create a communicator; a background job does the rest.
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
        communicator.spawn(move |this| this.join(&id));
        Ok(communicator)
    }

    pub(crate) fn of_handle(handle: usize) -> Result<Arc<Self>, Fault> {
        let found = ALL.lock().unwrap().get(&handle).cloned();
        found.ok_or_else(|| Fault::invalid(format!("{handle:#x} is not a communicator")))
    }

    /// Invalidates the handle.
    pub(crate) fn forget(&self) {
        ALL.lock().unwrap().remove(&self.handle);
    }

    fn join(&self, id: &UniqueId) -> Result<(), Stop> {
        let joined = id.open().and_then(|file| Area::join(&file, self.rank, self.ranks, self.place.uuid));
        let gathered = joined.map_err(Stop::from).and_then(|area| {
            area.gather(&self.is_aborted)?;
            Ok(area)
        });
        // By now all ranks have mapped the memory, or never will.
        id.forget();
        let is_first = self.area.set(gathered?).is_ok();
        assert!(is_first, "a communicator is created once");
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Starts a background job, which lasts until `end_job`.
    pub(crate) fn begin_job(&self) {
        self.state().jobs += 1;
    }

    pub(crate) fn end_job(&self, result: Result<(), Stop>) {
        self.note(result);
        self.state().jobs -= 1;
        self.changed.notify_all();
    }

    /// Runs a background job.
    fn spawn(self: &Arc<Self>, job: impl FnOnce(&Self) -> Result<(), Stop> + Send + 'static) {
        self.begin_job();
        let this = Arc::clone(self);
        thread::spawn(move || this.end_job(job(&this)));
    }

    /// Records the first failure.
    fn note(&self, result: Result<(), Stop>) {
        if let Err(Stop::Failed(fault)) = result {
            self.state().fault.get_or_insert(fault);
        }
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.state().fault.clone()
    }

    /// The state: success, a failure, or in progress.
    pub(crate) fn progress(&self) -> Result<(), Fault> {
        let state = self.state();
        match &state.fault {
            Some(fault) => Err(fault.clone()),
            None if state.jobs > 0 => Err(Fault::in_progress()),
            None => Ok(()),
        }
    }

    /// Returns an error if the communicator may not be used now.
    pub(crate) fn ready(&self) -> Result<(), Fault> {
        let progress = self.progress();
        if progress.as_ref().is_err_and(|fault| fault.kind == Kind::InProgress) {
            let message = "Attempt to use communicator before the previous operation returned ncclSuccess";
            return Err(Fault::invalid(message));
        }
        if progress.is_ok() && self.state().is_finalized {
            return Err(Fault::invalid("the communicator is finalized"));
        }
        progress
    }

    /// Waits until no background job is running; jobs have deadlines.
    pub(crate) fn settle(&self) -> Result<(), Fault> {
        drop(self.changed.wait_while(self.state(), |state| state.jobs > 0).unwrap());
        self.progress()
    }

    /// Starts to finalise: waits for all collectives, and for all ranks.
    pub(crate) fn finalize(self: &Arc<Self>) -> Result<(), Fault> {
        self.ready()?;
        self.state().is_finalized = true;
        self.spawn(|this| {
            this.drain()?;
            this.area.get().expect("the communicator is ready").part(&this.is_aborted)
        });
        if self.is_blocking { self.settle() } else { Err(Fault::in_progress()) }
    }

    pub(crate) fn is_finalized(&self) -> bool {
        self.state().is_finalized
    }

    fn drain(&self) -> Result<(), Stop> {
        let all = self.launched.load(Ordering::Acquire);
        self.wait_for(|ended| ended >= all).map(|_| ())
    }

    /// Waits until a condition holds for the number of collectives that have ended, and returns with the lock held.
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
                let message = "a stream did not reach an earlier collective of the communicator in time";
                return Err(Fault::new(Kind::RemoteError, message).into());
            }
            ended = self.next.wait_timeout(ended, Duration::from_millis(20)).unwrap().0;
        }
    }

    /// Ends all operations once their streams reach them; no buffer is accessed afterwards.
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
        self.next.notify_all();
        // The result of an interrupted job is ignored.
        let _ = self.settle();
        let all = self.launched.load(Ordering::Acquire);
        let ended = self.ended.lock().unwrap();
        // A stream skips them after an error.
        drop(self.next.wait_timeout_while(ended, SETTINGS.deadline, |ended| *ended < all).unwrap());
    }

    pub(crate) fn launch(self: &Arc<Self>, call: Call) -> Result<(), Stop> {
        if self.is_aborted.load(Ordering::Acquire) {
            return Err(Stop::Aborted);
        }
        let number = self.launched.fetch_add(1, Ordering::AcqRel);
        let launched = Box::into_raw(Box::new(Launched { communicator: Arc::clone(self), call, number }));
        self.place.launch(call.stream, run, launched.cast()).map_err(|fault| {
            // SAFETY: the stream refused the function, so this is the only owner of the box again.
            drop(unsafe { Box::from_raw(launched) });
            self.end(self.ended.lock().unwrap(), Err(fault.clone().into()));
            fault.into()
        })
    }

    fn execute(&self, call: &Call, number: u64) {
        let (ended, done) = match self.wait_for(|ended| ended >= number) {
            Err(stop) => (self.ended.lock().unwrap(), Err(stop)),
            // After a failure nothing is executed; the failure has been reported.
            Ok(ended) if self.fault().is_some() => (ended, Ok(())),
            Ok(ended) => {
                let area = self.area.get().expect("the communicator is ready");
                (ended, call.execute(area, number, &self.is_aborted))
            }
        };
        self.end(ended, done);
    }

    /// Counts a collective that has ended.
    fn end(&self, mut ended: MutexGuard<'_, u64>, done: Result<(), Stop>) {
        self.note(done);
        *ended += 1;
        self.next.notify_all();
    }
}

/// The host function that the stream runs.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: the pointer is from `Box::into_raw` in `launch`, for this single call.
    let launched = unsafe { Box::from_raw(data.cast::<Launched>()) };
    launched.communicator.execute(&launched.call, launched.number);
}
