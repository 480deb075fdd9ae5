//! The communication thread, which carries out non-blocking collectives.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Progress, Request, YIELDS, lock, panic_text, run_callback, until_callback};
use crate::collective::{Engine, Limits};
use crate::error::{Error, Result};
use crate::status::StatusBoard;

/// One call on the communication thread.
type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// Holds the engine while no call is in flight. Otherwise the communication thread holds it. So blocking calls run on the caller's
/// thread without a lock.
#[derive(Debug)]
pub(crate) struct EngineOwner {
    here: Option<Box<Engine>>,
    /// The deadlines of the engine while the communication thread holds it.
    limits: Limits,
    status: StatusBoard,
    background: Option<Background>,
}

impl EngineOwner {
    pub(crate) fn new(engine: Engine) -> Self {
        let (limits, status) = (engine.limits, engine.status.clone());
        Self { here: Some(Box::new(engine)), limits, status, background: None }
    }

    /// Returns the engine, once no call is in flight.
    #[inline]
    pub(crate) fn engine(&mut self) -> &mut Engine {
        if self.here.is_none() {
            self.here = self.recall();
        }
        self.here.as_mut().expect("the engine is held here or by the communication thread")
    }

    /// Returns the engine, unless calls are in flight that this thread has not waited for.
    pub(crate) fn here(&self) -> Option<&Engine> {
        self.here.as_deref()
    }

    /// Like [`here`](Self::here), mutable.
    pub(crate) fn here_mut(&mut self) -> Option<&mut Engine> {
        self.here.as_deref_mut()
    }

    /// Returns the deadlines of calls of the engine, wherever it is held.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    #[cold]
    fn recall(&mut self) -> Option<Box<Engine>> {
        let mut engine = self.background.as_ref()?.recall(&self.status);
        engine.transport.has_core_to_itself(true);
        self.status.set_in_flight(false);
        Some(engine)
    }

    /// Runs `call` with the buffer on the communication thread, after all calls in flight.
    pub(crate) fn send<B: Send + 'static>(
        &mut self,
        mut buffer: B,
        call: impl FnOnce(&mut Engine, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Request<B>> {
        let background = match &mut self.background {
            Some(background) => background,
            none => none.insert(Background::start()?),
        };
        let request = Request::new(Progress::InBackground(self.status.clone()));
        let outcome = Arc::clone(&request.outcome);
        let job: Job = Box::new(move |engine| {
            let began = Instant::now();
            let ran = catch_unwind(AssertUnwindSafe(|| call(engine, &mut buffer)));
            let ran = ran.unwrap_or_else(|panic| {
                let why = panic_text(&*panic).map_or(String::new(), |text| format!(": {text}"));
                Err(engine.fail(&format!("a collective in flight panicked{why}")))
            });
            match ran {
                Ok(()) => outcome.end(began, Ok(buffer)),
                // The buffer is dropped afterwards, since its destructor may panic.
                Err(error) => outcome.end(began, Err(error)),
            }
        });
        let mut state = background.lock();
        if let Some(mut engine) = self.here.take() {
            engine.transport.has_core_to_itself(false);
            self.limits = engine.limits;
            self.status.set_in_flight(true);
            state.engine = Some(engine);
        }
        state.jobs.push_back(job);
        background.common.changed.notify_all();
        Ok(request)
    }
}

impl Drop for EngineOwner {
    fn drop(&mut self) {
        // Other ranks wait for the calls in flight. The engine is dropped on this thread, which may be panicking.
        if self.here.is_none() {
            self.here = self.recall();
        }
    }
}

/// The communication thread.
#[derive(Debug)]
struct Background {
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Common {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The engine, unless a thread is using it.
    engine: Option<Box<Engine>>,
    jobs: VecDeque<Job>,
    ends: bool,
}

impl State {
    fn is_busy(&self) -> bool {
        self.engine.is_none() || !self.jobs.is_empty()
    }

    /// Returns the engine, if no job is queued.
    fn idle_engine(&mut self) -> Option<Box<Engine>> {
        if self.is_busy() { None } else { self.engine.take() }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("engine", &self.engine).field("jobs", &self.jobs.len()).finish()
    }
}

impl Background {
    fn start() -> Result<Self> {
        let common = Arc::new(Common::default());
        let theirs = Arc::clone(&common);
        let thread = std::thread::Builder::new().name("communication".into()).spawn(move || theirs.serve());
        let failed = |cause| {
            Error::Unsupported(format!("cannot start the communication thread: {cause}; use blocking calls"))
        };
        Ok(Self { common, thread: Some(thread.map_err(failed)?) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.common.state)
    }

    /// Waits until all jobs are done, and returns the engine.
    fn recall(&self, status: &StatusBoard) -> Box<Engine> {
        // A result is ready slightly before the engine is idle.
        for _ in 0..YIELDS {
            if let Some(engine) = self.lock().idle_engine() {
                return engine;
            }
            std::thread::yield_now();
        }
        loop {
            let most = until_callback(Duration::MAX);
            let waited = self.common.changed.wait_timeout_while(self.lock(), most, |state| state.is_busy());
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if let Some(engine) = state.idle_engine() {
                return engine;
            }
            drop(state);
            run_callback(status);
        }
    }
}

impl Common {
    /// Runs jobs in order.
    fn serve(&self) {
        let mut state = lock(&self.state);
        while !state.ends {
            // The engine arrives with the first job, and stays until all jobs are done.
            let Some(job) = state.jobs.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut engine = state.engine.take().expect("jobs come with the engine");
            drop(state);
            // Calls catch their own panics. The destructor of a buffer may panic after its call has ended, and later calls need the engine.
            let _ = catch_unwind(AssertUnwindSafe(|| job(&mut engine)));
            state = lock(&self.state);
            state.engine = Some(engine);
            self.changed.notify_all();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.lock().ends = true;
        self.common.changed.notify_all();
        let ended = self.thread.take().map(JoinHandle::join);
        debug_assert!(matches!(ended, Some(Ok(()))), "jobs catch their panics");
    }
}

#[cfg(test)]
mod tests {
    use std::ops::{Deref, DerefMut};

    use crate::error::Error;
    use crate::kernels::ReduceOp;

    /// A buffer whose destructor panics.
    struct Fragile(Vec<f32>);

    impl Deref for Fragile {
        type Target = [f32];

        fn deref(&self) -> &[f32] {
            &self.0
        }
    }

    impl DerefMut for Fragile {
        fn deref_mut(&mut self) -> &mut [f32] {
            &mut self.0
        }
    }

    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }

    #[test]
    fn panic_of_a_destructor_ends_no_other_call() {
        crate::threads(1, |mut comm| {
            // The call is refused on the communication thread, which drops the buffer.
            let refused = comm.all_reduce_async(Fragile(vec![1.0]), ReduceOp::BitAnd).unwrap().wait();
            assert!(matches!(refused, Err(Error::Unsupported(_))));
            comm.barrier().unwrap();
            assert_eq!(comm.all_reduce_async(vec![1.0_f32], ReduceOp::Sum).unwrap().wait().unwrap(), [1.0]);
        });
    }
}
