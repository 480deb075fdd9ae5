//! Watches the launched processes until the last one has ended: ranks, or the launchers of hosts.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::mem;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use unisono::config::{BOOTSTRAP_DIR, JOIN, OF_MPI_LAUNCHERS};

use super::super::STOPPED;
use super::super::family::{Member, POLL, TO_END, code, how, reap_orphans};
use super::forward::Output;
use super::print_message;

/// The processes that a launch starts.
pub(super) trait Place {
    fn count(&self) -> usize;
    /// Starts the process with this index. `joins` is set for a restarted rank.
    fn start(&self, index: usize, joins: bool) -> io::Result<Member>;
    /// Returns the name of the program for errors.
    fn program(&self) -> String;
    /// Returns the name of the processes, in the plural.
    fn what(&self) -> &'static str;
    /// Returns the report of a failed process, or `None` if it has reported the failure itself.
    fn failure(&self, index: usize, process: u32, status: ExitStatus) -> Option<String>;
    fn code(&self, status: ExitStatus) -> u8 {
        code(status)
    }
    /// Returns whether the other processes can continue without this one.
    fn is_replaceable(&self, _index: usize, _status: ExitStatus) -> bool {
        false
    }
}

/// The ranks of this machine in their world.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) words: Vec<OsString>,
    /// Variables to set in addition to those that describe a rank.
    pub(super) environment: Vec<(String, String)>,
    pub(super) first: usize,
    /// The number of ranks on this machine.
    pub(super) here: usize,
    pub(super) all: usize,
    pub(super) meeting: Meeting,
    pub(super) output: Output,
    /// Whether rank 0 reads standard input.
    pub(super) reads: bool,
}

/// The location through which ranks connect.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Meeting {
    /// On one machine.
    Directory(PathBuf),
    /// The first of several machines.
    Master { host: String, port: u16 },
}

impl Place for Machine {
    fn count(&self) -> usize {
        self.here
    }

    fn start(&self, index: usize, joins: bool) -> io::Result<Member> {
        let rank = self.first + index;
        let mut command = self.command(index);
        if joins {
            command.env(JOIN, "1");
        }
        self.output.capture(rank, &mut command);
        // The main thread starts all ranks.
        let mut member = Member::start_bound(command)?;
        member.forwards = self.output.forward(rank, &mut member.child)?;
        Ok(member)
    }

    fn program(&self) -> String {
        self.words[0].display().to_string()
    }

    fn what(&self) -> &'static str {
        "ranks"
    }

    fn failure(&self, index: usize, process: u32, status: ExitStatus) -> Option<String> {
        Some(format!("rank {} (process {process}) {}", self.first + index, how(status)))
    }

    fn is_replaceable(&self, index: usize, status: ExitStatus) -> bool {
        self.first + index > 0 && status.signal().is_some()
    }
}

impl Machine {
    pub(super) fn prepare(&self) -> io::Result<()> {
        self.output.prepare(self.first..self.first + self.here)
    }

    fn command(&self, local_rank: usize) -> Command {
        let Self { words, environment, first, here, all, meeting, .. } = self;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(environment.iter().cloned());
        // The ranks belong to this launch, not to that of an MPI around it.
        for name in OF_MPI_LAUNCHERS {
            command.env_remove(name);
        }
        command.env_remove(JOIN);
        match meeting {
            Meeting::Directory(directory) => command.env(BOOTSTRAP_DIR, directory),
            Meeting::Master { host, port } => command
                .env_remove(BOOTSTRAP_DIR)
                .env("MASTER_ADDR", host)
                .env("MASTER_PORT", port.to_string()),
        };
        let rank = first + local_rank;
        for (name, number) in
            [("RANK", rank), ("WORLD_SIZE", *all), ("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", *here)]
        {
            command.env(name, number.to_string());
        }
        // A terminal is not passed on: a process outside its foreground group that reads from it is stopped.
        if rank > 0 || !self.reads || io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        command
    }
}

pub(super) struct Ranks<'a> {
    place: &'a dyn Place,
    /// The number of remaining restarts of killed ranks. If `None`, a killed rank ends the others.
    restarts: Option<u32>,
    ranks: Vec<Rank>,
    /// Ranks that were started again.
    replaced: Vec<Member>,
    /// The index and the exit status of the first rank that failed.
    failed: Option<(usize, ExitStatus)>,
    /// The next signal to ranks that should have ended, and its time.
    next: Option<(Signal, Instant)>,
    /// When to stop the other ranks, after one has stopped on a request to it alone. Ranks that begin later would wait for it.
    stop_at: Option<Instant>,
    /// Whether all ranks got a signal.
    got_signal: bool,
    /// Whether a signal has requested the ranks to end.
    is_ending: bool,
}

#[derive(Debug)]
struct Rank {
    member: Member,
    status: Option<ExitStatus>,
    /// Whether it was restarted.
    joins: bool,
}

/// Returns whether a rank has failed. A rank that stops on request has not.
fn fails(status: ExitStatus) -> bool {
    !status.success() && code(status) != STOPPED
}

impl<'a> Ranks<'a> {
    /// Starts the ranks. A killed rank other than 0 is restarted, up to `restarts` times in total, while the others continue.
    ///
    /// # Errors
    /// If a rank cannot be started. The ranks before it are running.
    pub(super) fn start(place: &'a dyn Place, restarts: Option<u32>) -> io::Result<Self> {
        let start = |index| Ok(Rank { member: place.start(index, false)?, status: None, joins: false });
        let ranks = (0..place.count()).map(start).collect::<io::Result<_>>()?;
        let (replaced, failed, next, stop_at) = (Vec::new(), None, None, None);
        let (got_signal, is_ending) = (false, false);
        Ok(Self { place, restarts, ranks, replaced, failed, next, stop_at, got_signal, is_ending })
    }

    /// Waits for all ranks to end. After one fails, the others get a grace period to detect and report the failure themselves. Forwards signals to
    /// the ranks.
    pub(super) fn watch(&mut self, signals: &mut dyn FnMut() -> Vec<i32>, grace: Duration) -> io::Result<()> {
        let mut reaped = Instant::now();
        loop {
            self.poll(grace)?;
            reap_orphans(&mut reaped, |pid| self.ranks.iter().any(|rank| rank.member.child.id() == pid));
            if self.running().next().is_none() {
                return Ok(());
            }
            // Signals that arrive together are one request.
            let were_ending = self.is_ending;
            for signal in signals() {
                self.pass_on(signal, were_ending);
            }
            if let Some((signal, when)) = self.next
                && Instant::now() >= when
            {
                self.end_by(signal);
            }
            let is_due = self.stop_at.is_some_and(|when| Instant::now() >= when);
            if is_due && !self.got_signal && self.next.is_none() {
                self.got_signal = true;
                self.report_running("stopping them, as one has stopped on request");
                self.running().for_each(|rank| rank.signal_group(Signal::TERM));
            }
            thread::sleep(POLL);
        }
    }

    /// Waits until all output has been forwarded after all ranks have ended. Returns the exit code of the world.
    pub(super) fn end(&mut self) -> u8 {
        let members = self.ranks.iter_mut().map(|rank| &mut rank.member).chain(&mut self.replaced);
        for forward in members.flat_map(|member| mem::take(&mut member.forwards)) {
            // A panicking thread has already reported the panic.
            let _ = forward.join();
        }
        let has_stopped =
            || self.ranks.iter().any(|rank| rank.status.is_some_and(|status| code(status) == STOPPED));
        // A restarted rank may fail to join in the moment before rank 0 ends, unless rank 0 only ended because of this failure.
        let was_ended = self.next.is_some_and(|(signal, _)| signal == Signal::KILL);
        let counts = |&(index, _): &(usize, _)| was_ended || !(self.ranks[index].joins && self.is_over());
        match self.failed.filter(counts) {
            Some((_, status)) => self.place.code(status),
            None if has_stopped() => STOPPED,
            None => 0,
        }
    }

    fn running(&mut self) -> impl Iterator<Item = &mut Member> {
        self.ranks.iter_mut().filter(|rank| rank.status.is_none()).map(|rank| &mut rank.member)
    }

    fn poll(&mut self, grace: Duration) -> io::Result<()> {
        for index in 0..self.ranks.len() {
            let rank = &mut self.ranks[index];
            if rank.status.is_none() {
                rank.status = rank.member.child.try_wait()?;
                match rank.status {
                    Some(status) if fails(status) => self.fail(index, status, grace)?,
                    // With restarts, ranks continue without each other.
                    Some(status) if code(status) == STOPPED && self.restarts.is_none() => {
                        self.stop_at.get_or_insert(Instant::now() + grace);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Restarts a failed rank, continues without it, or ends the others. Reports the first failure that ends the others.
    fn fail(&mut self, index: usize, status: ExitStatus, grace: Duration) -> io::Result<()> {
        let is_over = self.is_over();
        let rank = &mut self.ranks[index];
        let report = self.place.failure(index, rank.member.child.id(), status);
        let is_replaceable = self.place.is_replaceable(index, status) || rank.joins && is_over;
        let continues = is_replaceable && !self.is_ending && self.next.is_none();
        if let Some(restarts) = self.restarts.as_mut().filter(|_| continues) {
            let report = report.unwrap_or_default();
            let Some(left) = restarts.checked_sub(1).filter(|_| !is_over) else {
                print_message(&format!("{report}: the others continue without it"));
                return Ok(());
            };
            print_message(&format!("{report}: restarting it; restarts left: {left}"));
            *restarts = left;
            let member = self.place.start(index, true)?;
            self.replaced.push(mem::replace(&mut rank.member, member));
            (rank.status, rank.joins) = (None, true);
        } else if self.failed.is_none() {
            report.iter().for_each(|report| print_message(report));
            self.failed = Some((index, status));
            // Ranks that are already being killed get no grace period.
            self.next.get_or_insert((Signal::TERM, Instant::now() + grace));
        }
        Ok(())
    }

    /// Returns whether rank 0 has succeeded. A restarted rank can then no longer join.
    fn is_over(&self) -> bool {
        self.ranks[0].status.is_some_and(|status| !fails(status))
    }

    /// Forwards a signal to the ranks. If they `were_ending` already, a termination signal kills them.
    fn pass_on(&mut self, signal: i32, were_ending: bool) {
        let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
        let ends = signal != Signal::USR1;
        // A closed terminal sends SIGHUP twice.
        if signal == Signal::HUP && were_ending {
            return;
        }
        if signal == Signal::KILL || ends && were_ending {
            return self.end_by(Signal::KILL);
        }
        (self.got_signal, self.is_ending) = (true, self.is_ending | ends);
        self.running().for_each(|rank| rank.signal_group(signal));
    }

    /// Sends a signal to ranks that do not end by themselves.
    fn end_by(&mut self, signal: Signal) {
        self.report_running(if signal == Signal::KILL { "killing them" } else { "terminating them" });
        self.running().for_each(|rank| rank.signal_group(signal));
        self.next = Some((Signal::KILL, Instant::now() + TO_END));
    }

    fn report_running(&mut self, what: &str) {
        let (running, all, name) = (self.running().count(), self.ranks.len(), self.place.what());
        print_message(&format!("{running} of {all} {name} are still running: {what}"));
    }
}
