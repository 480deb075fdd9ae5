//! The watchdog detects failures that the failed rank cannot report itself, and writes them to the [`StatusBoard`], which waiting
//! ranks poll.
//!
//! In a program that ends when a rank fails, it is a thread in each process, or in each world of threads. It sleeps until an event,
//! at most for a tick, and costs a few microseconds twenty times a second. It never calls MPI, which may hang. The leaders of nodes
//! exchange failures and states over their own connections.
//!
//! In a program that gets errors instead, the library starts no thread: waiting ranks make the same [`Checks`] themselves.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use unisono_collectives::Rank;

use crate::config::OnFailure;
use crate::error::{Error, Result};
use crate::observe::flush_briefly;
use crate::status::{Guard, StatusBoard, dump, dump_all};
use crate::system::{FAILED, print_line};

mod by_ranks;
mod checks;
mod disagreement;
mod file;
mod identity;
mod nodes;
mod processes;
mod report;
#[allow(unsafe_code, reason = "a signal handler")]
mod signals;
mod sockets;
mod wake_up;
mod warning;

use by_ranks::ByRanks;
use checks::Checks;
pub(crate) use identity::{Identities, Identity};
use nodes::Nodes;
use report::{LATER, Report, keep_panics};
use signals::Signals;
use sockets::Sockets;
use wake_up::WakeUp;

/// The longest interval between checks.
const TICK: Duration = Duration::from_millis(50);
/// The longest time for which a rank may continue after another has failed.
const GRACE: Duration = Duration::from_secs(2);
/// The time for which a process that is being terminated waits for the cause.
const TERMINATION: Duration = Duration::from_millis(300);
/// The time after a termination signal from which other processes are assumed to end for the same reason: the launcher terminates
/// them too.
const SAME_END: Duration = Duration::from_millis(100);

/// The ranks to watch, and the reaction to a failure.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The status boards of the ranks of this process. The watchdog uses the first.
    pub(crate) statuses: Vec<StatusBoard>,
    pub(crate) identities: Arc<Identities>,
    /// The listening sockets of the hub, to which the leaders of other nodes connect.
    pub(crate) hub: Vec<TcpListener>,
    /// The connections with ranks of other nodes, of a rank that makes the checks itself.
    pub(crate) controls: Vec<(Rank, OwnedFd)>,
    /// The length of a wait before the first warning.
    pub(crate) warn_after: Duration,
    pub(crate) kind: Kind,
    pub(crate) on_failure: OnFailure,
}

/// The kind of ranks that a watchdog watches: each a process, or threads of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Processes,
    Threads,
}

/// Watches over ranks as long as the guard is held.
///
/// # Errors
/// [`Error::Launch`] if the system provides no thread or no file descriptor for it.
pub(crate) fn watch(watched: Watched) -> Result<Arc<dyn Guard>> {
    let guard = match watched.on_failure {
        OnFailure::EndJob => Watchdog::start(watched).map(|guard| Arc::new(guard) as Arc<dyn Guard>),
        OnFailure::ReturnError => ByRanks::new(watched).map(|guard| Arc::new(guard) as Arc<dyn Guard>),
    };
    guard.map_err(|cause| Error::Launch(format!("cannot start the watchdog: {cause}")))
}

/// A running watchdog thread. It ends when this is dropped.
#[derive(Debug)]
struct Watchdog {
    wake_up: Arc<WakeUp>,
    reports: Vec<Arc<Report>>,
    kind: Kind,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    fn start(watched: Watched) -> std::io::Result<Self> {
        let wake_up = Arc::new(WakeUp::new()?);
        let report = |status| Report::new(status, &watched.identities, true);
        let reports: Vec<_> = watched.statuses.iter().map(report).collect();
        let mut checks = Checks::new(&watched, &reports[0], false);
        let Watched { statuses, identities, hub, warn_after, kind, .. } = watched;
        checks.nodes = Sockets::of_leader(statuses[0].rank(), &identities, hub)
            .map(|sockets| Nodes::new(sockets, &reports[0], warn_after, false));
        keep_panics();
        let mut rounds = Rounds {
            kind,
            signals: Signals::install(kind == Kind::Processes),
            checks,
            reports: reports.clone(),
            wake_up: Arc::clone(&wake_up),
            failed_at: None,
            terminated: None,
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(move || rounds.run())?;
        Ok(Self { wake_up, reports, kind, thread: Some(thread) })
    }
}

impl Guard for Watchdog {
    /// Its thread checks them.
    fn check_peers(&self) {}

    fn exchange_now(&self) {
        self.wake_up.wake();
    }

    fn fail(&self, status: &StatusBoard, first: Rank, cause: &str) {
        // The failure of a group is a failure of its world, and ends the job.
        if let Some((world, first_in_world)) = status.in_world(first) {
            world.give_up(first_in_world, cause);
            status.fail(status.rank(), first, cause);
        } else {
            let report = self.reports.iter().find(|report| report.status.rank() == status.rank());
            report.expect("the watchdog has a report for each of its ranks").fail(first, cause);
            self.exchange_now();
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.wake_up.end();
        let ended = self.thread.take().map(JoinHandle::join);
        debug_assert!(matches!(ended, Some(Ok(()))), "a watchdog does not panic");
        // The job ends, before this process can do anything else.
        if self.kind == Kind::Processes && self.reports[0].status.failure().is_some() {
            self.reports.iter().for_each(|report| report.aborted());
            flush_briefly(GRACE);
            signal_hook::low_level::exit(FAILED);
        }
    }
}

#[derive(Debug)]
struct Rounds {
    kind: Kind,
    reports: Vec<Arc<Report>>,
    wake_up: Arc<WakeUp>,
    signals: Signals,
    checks: Checks,
    failed_at: Option<Instant>,
    /// The time and the number of the termination signal, if this process has received one.
    terminated: Option<(Instant, i32)>,
}

impl Rounds {
    fn status(&self) -> &StatusBoard {
        &self.checks.report.status
    }

    fn run(&mut self) {
        loop {
            self.wait();
            // Events before the end are still reported.
            let ends = self.wake_up.ends();
            self.round();
            if ends {
                if let Some(nodes) = &mut self.checks.nodes {
                    nodes.close();
                }
                return;
            }
        }
    }

    /// Sleeps until an event, at most for a tick. A signal ends the sleep too.
    fn wait(&self) {
        let woken = self.wake_up.event.get().into_iter().map(|file| (file, false));
        let flags = |writes| if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut files: Vec<_> = woken
            .chain(self.checks.waits_on())
            .map(|(file, writes)| PollFd::from_borrowed_fd(file, flags(writes)))
            .collect();
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        // If it fails, the next round starts at once.
        let _ = poll(&mut files, Some(&tick));
        self.wake_up.reset();
    }

    fn round(&mut self) {
        self.status().tick();
        if self.signals.take_dump_request() {
            self.dump();
        }
        if let Some(signal) = self.signals.termination_signal().filter(|_| self.terminated.is_none()) {
            self.terminated = Some((Instant::now(), signal));
            self.status().begin_termination();
        }
        let is_same_end = self.is_same_end();
        self.checks.round(is_same_end, is_same_end && self.is_ended_from_outside());
        if self.status().failure().is_some() {
            self.failed();
        }
        self.end_if_terminated();
    }

    /// Returns whether the whole world is being terminated, which is not a failure. A rank that is alone on its node cannot detect
    /// it.
    fn is_ended_from_outside(&self) -> bool {
        let members = self.status().members().len();
        self.status().all_are_terminating() && (members > 1 || members == self.status().ranks())
    }

    /// Returns whether other processes that end now do so for the same reason as this one.
    fn is_same_end(&self) -> bool {
        self.terminated.is_some_and(|(at, _)| at.elapsed() > SAME_END)
    }

    /// Ends this process after a termination signal. Unless all processes are being terminated, it first reports the cause: the
    /// failure of another rank, or its own termination.
    fn end_if_terminated(&self) {
        let Some((at, signal)) = self.terminated else { return };
        let passed = at.elapsed();
        if passed > TERMINATION && self.status().failure().is_none() {
            if self.is_ended_from_outside() {
                signals::end_by(signal);
            }
            let cause = format!(
                "it was ended by {}",
                signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
            );
            self.reports[0].fail(self.status().rank(), &cause);
            self.wake_up.wake();
        } else if passed > TERMINATION + 2 * LATER {
            // The others have reported the failure, and end soon after this process.
            self.reports.iter().for_each(|report| report.aborted());
            signals::end_by(signal);
        }
    }

    /// Handles the failure of a rank: gives the others time to report it, and ends this process.
    fn failed(&mut self) {
        let at = *self.failed_at.get_or_insert_with(Instant::now);
        let is_over = at.elapsed() > GRACE;
        // Ranks that are threads report themselves, if they make a call.
        if is_over || self.kind == Kind::Processes && at.elapsed() > LATER {
            self.reports.iter().for_each(|report| report.aborted());
        }
        if is_over {
            flush_briefly(GRACE);
            signal_hook::low_level::exit(FAILED);
        }
    }

    /// Writes the flight recorders of this process. Each process gets its own request.
    fn dump(&self) {
        match self.kind {
            Kind::Threads => dump_all(self.status(), "SIGUSR1"),
            Kind::Processes => {
                if let Err(error) = dump(self.status(), self.status().position(), "SIGUSR1") {
                    print_line(&error.to_string());
                }
            }
        }
    }
}
