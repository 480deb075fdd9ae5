//! The launched ranks, until the last has ended.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGUSR1};
use signal_hook::iterator::Signals;
use unisono::config::{BOOTSTRAP_DIR, JOIN};

use super::super::STOPPED;
use super::super::family::{Member, POLL, TO_END, code, how};
use super::{Directory, say};

/// The ranks of this machine in their world.
#[derive(Debug)]
pub(super) struct Place {
    /// The number of the first one.
    pub(super) first: usize,
    /// How many are here, and in the world.
    pub(super) here: usize,
    pub(super) all: usize,
    pub(super) meeting: Meeting,
}

/// Where ranks find each other.
#[derive(Debug)]
pub(super) enum Meeting {
    /// On one machine.
    Directory(Directory),
    /// On the first of several.
    Master { host: String, port: u16 },
}

/// All ranks of this machine, in rank order.
#[derive(Debug)]
pub(super) struct Ranks<'a> {
    words: &'a [OsString],
    place: &'a Place,
    /// How many times a rank that was killed is still started again; `None` if that ends the others.
    restarts: Option<u32>,
    /// The number of the first one in the world.
    first: usize,
    ranks: Vec<Rank>,
    /// The exit status of the first rank that failed.
    failed: Option<ExitStatus>,
    /// What to do next, and when, to ranks that should have ended.
    next: Option<(Measure, Instant)>,
    /// Whether a signal has told the ranks to end.
    told: bool,
}

#[derive(Debug)]
struct Rank {
    member: Member,
    status: Option<ExitStatus>,
}

/// A way to end ranks that do not end by themselves.
#[derive(Debug, Clone, Copy)]
enum Measure {
    Tell,
    Kill,
}

impl<'a> Ranks<'a> {
    /// Starts the ranks. If one other than 0 is killed, it is started again, up to `restarts` times in all, and the others go on.
    ///
    /// # Errors
    /// If a rank cannot be started; those before it are running.
    pub(super) fn start(words: &'a [OsString], place: &'a Place, restarts: Option<u32>) -> io::Result<Self> {
        let start = |local_rank| {
            let member = Member::start(command(words, local_rank, place))?;
            Ok(Rank { member, status: None })
        };
        let ranks = (0..place.here).map(start).collect::<io::Result<_>>()?;
        Ok(Self { words, place, restarts, first: place.first, ranks, failed: None, next: None, told: false })
    }

    /// Waits for all ranks to end. After one fails, the others get a grace period: they notice by themselves, and report it. Forwards
    /// signals to the ranks.
    pub(super) fn watch(&mut self, signals: &mut Signals, grace: Duration) -> io::Result<()> {
        loop {
            self.poll(grace)?;
            if self.running().count() == 0 {
                return Ok(());
            }
            for signal in signals.pending() {
                self.pass_on(signal);
            }
            if let Some((measure, when)) = self.next
                && Instant::now() >= when
            {
                self.take(measure);
            }
            thread::sleep(POLL);
        }
    }

    /// The exit code of the world, once all have ended.
    pub(super) fn code(&self) -> u8 {
        let has_stopped =
            || self.ranks.iter().any(|rank| rank.status.is_some_and(|status| code(status) == STOPPED));
        match self.failed {
            Some(status) => code(status),
            None if has_stopped() => STOPPED,
            None => 0,
        }
    }

    fn running(&self) -> impl Iterator<Item = &Member> {
        self.ranks.iter().filter(|rank| rank.status.is_none()).map(|rank| &rank.member)
    }

    /// Polls the ranks, and reports the first that failed.
    fn poll(&mut self, grace: Duration) -> io::Result<()> {
        let running = (self.first..).zip(&mut self.ranks).filter(|(_, rank)| rank.status.is_none());
        for (number, rank) in running {
            rank.status = rank.member.poll()?;
            let fails = |status: &ExitStatus| !status.success() && code(*status) != STOPPED;
            let Some(status) = rank.status.filter(fails) else { continue };
            let ends = self.told || self.next.is_some() || number == 0 || status.signal().is_none();
            if let Some(restarts) = self.restarts.as_mut().filter(|_| !ends) {
                let (process, how) = (rank.member.id(), how(status));
                let Some(left) = restarts.checked_sub(1) else {
                    say(&format!("rank {number} (process {process}) {how}: the others go on without it"));
                    continue;
                };
                say(&format!(
                    "rank {number} (process {process}) {how}: it is started again, and may be {left} more times"
                ));
                *restarts = left;
                let mut command = command(self.words, number - self.first, self.place);
                command.env(JOIN, "1");
                *rank = Rank { member: Member::start(command)?, status: None };
            } else if self.failed.is_none() {
                say(&format!("rank {number} (process {}) {}", rank.member.id(), how(status)));
                self.failed = Some(status);
                // Ranks that are already being killed get no grace period.
                self.next.get_or_insert((Measure::Tell, Instant::now() + grace));
            }
        }
        Ok(())
    }

    /// Forwards a signal to the ranks. A second signal to end kills them.
    fn pass_on(&mut self, signal: i32) {
        let (signal, ends) = match signal {
            SIGUSR1 => (Signal::USR1, false),
            SIGINT => (Signal::INT, true),
            SIGHUP => (Signal::HUP, true),
            _ => (Signal::TERM, true),
        };
        if ends && self.told {
            return self.take(Measure::Kill);
        }
        self.told |= ends;
        self.running().for_each(|rank| rank.signal_group(signal));
    }

    fn take(&mut self, measure: Measure) {
        let running = self.running().count();
        let (signal, what) = match measure {
            Measure::Tell => (Signal::TERM, "terminating them"),
            Measure::Kill => (Signal::KILL, "killing them"),
        };
        say(&format!("{running} of {} ranks are still running: {what}", self.ranks.len()));
        self.running().for_each(|rank| rank.signal_group(signal));
        self.next = Some((Measure::Kill, Instant::now() + TO_END));
    }
}

/// The command of a rank, with its environment.
fn command(words: &[OsString], local_rank: usize, place: &Place) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let Place { first, here, all, meeting } = place;
    match meeting {
        Meeting::Directory(directory) => command.env_remove(JOIN).env(BOOTSTRAP_DIR, directory.path()),
        Meeting::Master { host, port } => {
            command.env_remove(BOOTSTRAP_DIR).env("MASTER_ADDR", host).env("MASTER_PORT", port.to_string())
        }
    };
    let rank = first + local_rank;
    for (name, number) in
        [("RANK", rank), ("WORLD_SIZE", *all), ("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", *here)]
    {
        command.env(name, number.to_string());
    }
    // No terminal: a process outside the terminal's foreground group that reads from it is stopped.
    if rank > 0 || io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    command
}
