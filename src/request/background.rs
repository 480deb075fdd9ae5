//! The communication thread, which carries out non-blocking collectives.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Progress, Request, YIELDS, cause_of_reduction, lock, panic_text, wait_until_ready};
use crate::collective::{Engine, Limits};
use crate::error::{Error, Result};
use crate::status::StatusBoard;

type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// Holds the engine while no call is in flight. Otherwise the communication thread holds it. So blocking calls run on the caller's
/// thread without a lock.
#[derive(Debug)]
pub(crate) struct EngineOwner {
    here: Option<Box<Engine>>,
    /// The deadlines of calls that start from now on. Calls in flight keep those of their start.
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

    pub(crate) fn here_mut(&mut self) -> Option<&mut Engine> {
        self.here.as_deref_mut()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets the deadlines of calls that start from now on, without waiting for those in flight.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        if let Some(engine) = &mut self.here {
            engine.limits = limits;
        }
    }

    #[cold]
    fn recall(&mut self) -> Option<Box<Engine>> {
        let mut engine = self.background.as_ref()?.recall(&self.status);
        engine.limits = self.limits;
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
            none => match Background::start() {
                Ok(background) => none.insert(background),
                Err(cause) => return self.fail_to_start(&cause),
            },
        };
        let request = Request::new(Progress::InBackground(self.status.clone()));
        let (outcome, limits) = (Arc::clone(&request.outcome), self.limits);
        let job: Job = Box::new(move |engine| {
            let began = Instant::now();
            engine.limits = limits;
            let ran = catch_unwind(AssertUnwindSafe(|| call(engine, &mut buffer)));
            let ran = ran.unwrap_or_else(|panic| match cause_of_reduction(panic) {
                Ok(cause) => Err(engine.fail_by_reduction(cause)),
                Err(panic) => {
                    let why = panic_text(&*panic).map_or(String::new(), |text| format!(": {text}"));
                    Err(engine.fail(&format!("a collective in flight panicked{why}")))
                }
            });
            match ran {
                Ok(()) => outcome.end(began, Ok(buffer)),
                // The buffer is dropped afterwards, since its destructor may panic.
                Err(error) => outcome.end(began, Err(error)),
            }
        });
        let mut state = lock(&background.common.state);
        if let Some(mut engine) = self.here.take() {
            engine.transport.has_core_to_itself(false);
            self.status.set_in_flight(true);
            state.engine = Some(engine);
        }
        state.jobs.push_back(job);
        background.common.changed.notify_all();
        Ok(request)
    }

    /// Ends this communicator, since this rank cannot start the communication thread, and the other ranks wait for it in the call.
    fn fail_to_start<R>(&mut self, cause: &io::Error) -> Result<R> {
        self.engine().settle(Err(Error::Launch(format!(
            "cannot start the communication thread: {cause}; see `ulimit -u` and pids.max of a container, or use blocking calls"
        ))))
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

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("engine", &self.engine).field("jobs", &self.jobs.len()).finish()
    }
}

impl Background {
    fn start() -> io::Result<Self> {
        let common = Arc::new(Common::default());
        let theirs = Arc::clone(&common);
        let thread = std::thread::Builder::new().name("communication".into()).spawn(move || theirs.serve());
        Ok(Self { common, thread: Some(thread?) })
    }

    /// Waits until all jobs are done, and returns the engine.
    fn recall(&self, status: &StatusBoard) -> Box<Engine> {
        let Common { state, changed } = &*self.common;
        let is_idle = |state: &State| state.engine.is_some() && state.jobs.is_empty();
        let state = wait_until_ready((state, changed), (YIELDS, Duration::MAX), status, is_idle);
        state.and_then(|mut state| state.engine.take()).expect("the wait has no deadline")
    }
}

impl Common {
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
        lock(&self.common.state).ends = true;
        self.common.changed.notify_all();
        let ended = self.thread.take().map(JoinHandle::join);
        debug_assert!(matches!(ended, Some(Ok(()))), "jobs catch their panics");
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use unisono_collectives::Topology;

    use super::EngineOwner;
    use crate::call::Call;
    use crate::collective::{Engine, Limits, Options};
    use crate::error::Error;
    use crate::kernels::ReduceOp;
    use crate::select::Choice;
    use crate::transport::{Deadlines, Fabric};

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

    #[test]
    fn deadlines_apply_to_calls_that_start_later() {
        let limits = |seconds| {
            let timeout = Duration::from_secs(seconds);
            let deadlines = Deadlines { timeout, quiet: timeout };
            Limits { usual: deadlines, first: deadlines }
        };
        let fabric = Fabric::threads(1).unwrap().remove(0);
        let mut owner = EngineOwner::new(Engine::new(fabric, Topology::single_node(1), limits(1)));
        let observe = |owner: &mut EngineOwner| {
            let call = |engine: &mut Engine, observed: &mut Limits| {
                *observed = engine.limits;
                Ok(())
            };
            owner.send(limits(0), call).unwrap()
        };
        let first = observe(&mut owner);
        owner.set_limits(limits(2));
        let second = observe(&mut owner);
        assert_eq!((first.wait().unwrap(), second.wait().unwrap()), (limits(1), limits(2)));
        assert_eq!(owner.engine().limits, limits(2));
    }

    #[test]
    fn rank_that_cannot_start_the_thread_ends_calls_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let deadlines = Deadlines { timeout: Duration::from_secs(20), quiet: Duration::from_secs(20) };
        let limits = Limits { usual: deadlines, first: deadlines };
        let owner = |fabric: Fabric| {
            fabric.status().set_flight_dir(folder.path().to_owned());
            EngineOwner::new(Engine::new(fabric, Topology::single_node(2), limits))
        };
        let mut owners: Vec<_> = Fabric::threads(2).unwrap().into_iter().map(owner).collect();
        let failed = owners[0].fail_to_start::<()>(&io::ErrorKind::WouldBlock.into()).unwrap_err();
        let engine = owners[1].engine();
        let aborted = engine.run(&Choice::Auto, &Options::default(), &Call::barrier(), &mut []).unwrap_err();
        assert!(failed.is_fatal());
        assert_eq!((failed.failed_rank(), aborted.failed_rank()), (Some(0), Some(0)), "{aborted}");
    }
}
