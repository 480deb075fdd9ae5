//! The watchdog: a thread in each process, or in each world of threads, which detects what waiting, computing or dead ranks
//! cannot report themselves.
//!
//! It sleeps until something happens, at most for a tick: it costs a few microseconds twenty times a second. It never calls MPI,
//! which may hang.
//!
//! It writes what it detects to the [`StatusBoard`], which waiting ranks read. The leaders of nodes exchange it over their own
//! connections.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::config::OnFailure;
use crate::error::{Error, Result};
use crate::status::{FailureReport as _, Guard, StatusBoard, dump, dump_all};
use crate::system::{FAILED, say};

mod bell;
mod card;
mod disagreement;
mod hub;
mod link;
mod message;
mod nodes;
mod panics;
mod processes;
mod report;
mod signals;
mod star;
mod warning;

use bell::Bell;
pub(crate) use card::{Card, Cards};
use disagreement::disagreement;
pub(crate) use hub::Hub;
use nodes::Nodes;
use processes::Processes;
use report::{LATER, Report};
use signals::Signals;
use warning::Warnings;

/// The interval of its checks when nothing wakes it.
const TICK: Duration = Duration::from_millis(50);
/// How long a rank may still compute, or end, after another has failed.
const GRACE: Duration = Duration::from_secs(2);
/// How long a process that its launcher terminates waits for the cause.
const TERMINATION: Duration = Duration::from_millis(300);
/// How much later than that other processes may end for the same reason: the launcher terminates them too.
const SAME_END: Duration = Duration::from_millis(100);

/// What to watch, and what to do about it.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The status boards of the ranks of this process; the watchdog uses the first.
    pub(crate) statuses: Vec<StatusBoard>,
    pub(crate) cards: Cards,
    /// The ports for the leaders of other nodes.
    pub(crate) hub: Option<Hub>,
    /// The length of a wait before the first warning, on rank 0.
    pub(crate) warn_after: Duration,
    pub(crate) kind: Kind,
    /// What a failure does to this program, unless [changed later](Guard::end_program_on_failure).
    pub(crate) on_failure: OnFailure,
}

/// The kind of ranks that a watchdog watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Each rank is a process.
    Processes,
    /// The ranks are threads of this process.
    Threads,
}

/// A running watchdog. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    bell: Arc<Bell>,
    reports: Vec<Arc<Report>>,
    is_program: Arc<AtomicBool>,
    /// The status board, if this process is one rank.
    of_process: Option<StatusBoard>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts a watchdog.
    ///
    /// # Errors
    /// [`Error::Launch`] if the system provides no thread or no file descriptor for it.
    pub(crate) fn start(watched: Watched) -> Result<Self> {
        let failed = |cause: std::io::Error| Error::Launch(format!("cannot start the watchdog: {cause}"));
        let Watched { statuses, cards, hub, warn_after, kind, on_failure } = watched;
        let (bell, cards) = (Arc::new(Bell::new().map_err(failed)?), Arc::new(cards));
        let is_program = Arc::new(AtomicBool::new(false));
        let report = |status: &StatusBoard| {
            let (cards, bell) = (Arc::clone(&cards), Arc::clone(&bell));
            Arc::new(Report::new(status.clone(), cards, Arc::clone(&is_program), bell))
        };
        let reports: Vec<_> = statuses.iter().map(report).collect();
        let status = statuses.into_iter().next().expect("a process has a rank");
        let of_process = (kind == Kind::Processes).then(|| status.clone());
        let processes = match kind {
            Kind::Processes => Processes::on(&status, &cards),
            Kind::Threads => Processes::default(),
        };
        let mut rounds = Rounds {
            kind,
            is_program: Arc::clone(&is_program),
            signals: None,
            processes,
            nodes: Nodes::new(&status, &cards, hub, warn_after),
            warnings: (status.rank() == 0).then(|| Warnings::new(warn_after)),
            status,
            cards,
            reports: reports.clone(),
            bell: Arc::clone(&bell),
            failed_at: None,
            told_to_end: None,
        };
        if on_failure == OnFailure::EndJob {
            end_program(&is_program);
            rounds.heed_signals();
        }
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(move || rounds.run());
        Ok(Self { bell, reports, is_program, of_process, thread: Some(thread.map_err(failed)?) })
    }

    /// The failure reports of the ranks of this process, in the order of their status boards.
    pub(crate) fn reports(&self) -> &[Arc<Report>] {
        &self.reports
    }
}

impl Guard for Watchdog {
    fn end_program_on_failure(&self) {
        end_program(&self.is_program);
        self.bell.ring();
    }
}

/// Makes this process end with its ranks.
fn end_program(is_program: &AtomicBool) {
    panics::keep();
    is_program.store(true, Ordering::Relaxed);
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.bell.ring_to_end();
        let ended = self.thread.take().map(JoinHandle::join);
        debug_assert!(matches!(ended, Some(Ok(()))), "a watchdog does not panic");
        // The job ends, whatever this process would do next.
        let has_failed = self.of_process.as_ref().is_some_and(|status| status.failed().is_some());
        if has_failed && self.is_program.load(Ordering::Relaxed) {
            self.reports.iter().for_each(|report| report.aborted());
            signal_hook::low_level::exit(FAILED);
        }
    }
}

/// The state of the watchdog thread.
#[derive(Debug)]
struct Rounds {
    kind: Kind,
    /// Whether this process ends with its ranks.
    is_program: Arc<AtomicBool>,
    status: StatusBoard,
    cards: Arc<Cards>,
    reports: Vec<Arc<Report>>,
    bell: Arc<Bell>,
    /// Handled if this process ends with its ranks.
    signals: Option<Signals>,
    processes: Processes,
    nodes: Option<Nodes>,
    warnings: Option<Warnings>,
    /// When this watchdog saw that a rank had failed.
    failed_at: Option<Instant>,
    /// When this process was told to end, and by which signal.
    told_to_end: Option<(Instant, i32)>,
}

impl Rounds {
    fn run(&mut self) {
        loop {
            self.wait();
            // Events before the end are still reported.
            let ends = self.bell.ends();
            self.round();
            if ends {
                if let Some(nodes) = &mut self.nodes {
                    nodes.close();
                }
                return;
            }
        }
    }

    /// Sleeps until something happens, or the next check is due.
    fn wait(&self) {
        let bell = (self.bell.as_fd(), false);
        let processes = self.processes.waits_on().map(|process| (process, false));
        let nodes = self.nodes.iter().flat_map(Nodes::waits_on);
        let flags = |writes| if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let all = std::iter::once(bell).chain(processes).chain(nodes);
        let mut all: Vec<_> =
            all.map(|(file, writes)| PollFd::from_borrowed_fd(file, flags(writes))).collect();
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        // A signal ends the sleep too.
        let _ = poll(&mut all, Some(&tick));
        self.bell.still();
    }

    fn round(&mut self) {
        self.status.tick();
        self.heed_signals();
        let signals = self.signals.as_ref();
        let (asked, told_to_end) =
            (signals.is_some_and(Signals::asked), signals.and_then(Signals::told_to_end));
        if asked {
            self.asked();
        }
        if let Some(signal) = told_to_end.filter(|_| self.told_to_end.is_none()) {
            self.told_to_end = Some((Instant::now(), signal));
            self.status.tell_to_end();
        }
        self.look_at_processes();
        let is_same_end = self.is_same_end() && self.is_ended_from_outside();
        if let Some(nodes) = self.nodes.as_mut().filter(|_| !is_same_end) {
            nodes.round(&self.reports[0]);
        }
        if self.status.failed().is_some() {
            self.failed();
        } else {
            self.look_at_all();
        }
        self.end_if_told();
    }

    fn heed_signals(&mut self) {
        if self.signals.is_none() && self.is_program.load(Ordering::Relaxed) {
            self.signals = Some(Signals::heed(self.kind == Kind::Processes));
        }
    }

    /// Whether the whole world is being terminated, which is not a failure. A rank that is alone on its node cannot know.
    fn is_ended_from_outside(&self) -> bool {
        let members = self.status.members().len();
        self.status.all_are_told_to_end() && (members > 1 || members == self.status.ranks())
    }

    /// Whether other processes that end now do so for the same reason as this one.
    fn is_same_end(&self) -> bool {
        self.told_to_end.is_some_and(|(at, _)| at.elapsed() > SAME_END)
    }

    /// Ends a process that was told to end; unless all were, it reports the cause: that of another rank, or its own termination.
    fn end_if_told(&self) {
        let Some((at, signal)) = self.told_to_end else { return };
        let passed = at.elapsed();
        if passed > TERMINATION && self.status.failed().is_none() {
            if self.is_ended_from_outside() {
                signals::end_by(signal);
            }
            self.reports[0].fail(&format!("it was ended by {}", signals::name(signal)));
        } else if passed > TERMINATION + 2 * LATER {
            // The others have reported: they may not outlive this process by much.
            self.reports.iter().for_each(|report| report.aborted());
            signals::end_by(signal);
        }
    }

    fn look_at_processes(&mut self) {
        for rank in self.processes.ended() {
            if !self.status.has_left(rank) && !self.is_same_end() {
                self.reports[0].died(rank, "its process was killed, has crashed or called exit", None);
            }
        }
    }

    /// After the failure of a rank: lets the others report it, and ends this process.
    fn failed(&mut self) {
        let at = *self.failed_at.get_or_insert_with(Instant::now);
        let is_over = self.is_program.load(Ordering::Relaxed) && at.elapsed() > GRACE;
        // Ranks that are threads report themselves, if they make a call.
        if is_over || self.kind == Kind::Processes && at.elapsed() > LATER {
            self.reports.iter().for_each(|report| report.aborted());
        }
        if is_over {
            signal_hook::low_level::exit(FAILED);
        }
    }

    /// Handles a request for flight recorders of this process. (Each process gets its own request.)
    fn asked(&self) {
        match self.kind {
            Kind::Threads => dump_all(&self.status, "SIGUSR1"),
            Kind::Processes => {
                if let Err(error) = dump(&self.status, self.status.position(), "SIGUSR1") {
                    say(&format!("unisono: {error}\n"));
                }
            }
        }
    }

    /// On rank 0: checks all ranks for long waits and for mismatched calls.
    fn look_at_all(&mut self) {
        let Some(warnings) = self.warnings.as_mut().filter(|_| !self.status.is_quiet()) else { return };
        if !warnings.is_time() {
            return;
        }
        let here = (0..self.status.members().len()).map(|position| (self.status.doing(position), None));
        let elsewhere = self.nodes.iter().flat_map(Nodes::doings);
        let ranks: Vec<_> = here.chain(elsewhere).collect();
        if let Some(cause) = disagreement(&ranks) {
            return self.reports[0].seen(&cause);
        }
        if let Some(warning) = warnings.due(&ranks, &self.cards) {
            say(&warning);
        }
    }
}
