//! The ranks that were started, until the last of them has ended.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGUSR1};
use signal_hook::iterator::Signals;
use unisono::config::BOOTSTRAP_DIR;

use super::super::STOPPED;
use super::super::family::{Member, POLL, TO_END, code, how};
use super::say;

/// All ranks of a world, by number.
#[derive(Debug)]
pub(super) struct Ranks {
    ranks: Vec<Rank>,
    /// How the first ended that failed.
    failed: Option<ExitStatus>,
    /// What is done next, and when, to those that should have ended.
    next: Option<(Measure, Instant)>,
    /// Whether they were told to end by a signal.
    told: bool,
}

#[derive(Debug)]
struct Rank {
    member: Member,
    status: Option<ExitStatus>,
}

/// What makes ranks end that do not end by themselves.
#[derive(Debug, Clone, Copy)]
enum Measure {
    Tell,
    Kill,
}

impl Ranks {
    /// Starts them, to find each other in a directory.
    ///
    /// # Errors
    /// If one cannot be started; those before it run.
    pub(super) fn start(words: &[OsString], count: usize, bootstrap_dir: &Path) -> io::Result<Self> {
        let start = |rank| {
            let member = Member::start(command(words, rank, count, bootstrap_dir))?;
            Ok(Rank { member, status: None })
        };
        let ranks = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(Self { ranks, failed: None, next: None, told: false })
    }

    /// Waits for all of them to end. When one fails, the others have a grace: they learn of it by themselves, and say so. Signals
    /// are passed on.
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

    /// Sees who has ended, and says who failed first.
    fn poll(&mut self, grace: Duration) -> io::Result<()> {
        for (number, rank) in self.ranks.iter_mut().enumerate().filter(|(_, rank)| rank.status.is_none()) {
            rank.status = rank.member.poll()?;
            let fails = |status: &ExitStatus| !status.success() && code(*status) != STOPPED;
            if let Some(status) = rank.status.filter(fails)
                && self.failed.is_none()
            {
                say(&format!("rank {number} (process {}) {}", rank.member.id(), how(status)));
                self.failed = Some(status);
                // Those that are being killed already have no grace.
                self.next.get_or_insert((Measure::Tell, Instant::now() + grace));
            }
        }
        Ok(())
    }

    /// Tells ranks what this process is told. Who tells it twice to end does not want to wait.
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
            Measure::Tell => (Signal::TERM, "has them end"),
            Measure::Kill => (Signal::KILL, "kills them"),
        };
        say(&format!("{running} of {} ranks have not ended: {what}", self.ranks.len()));
        self.running().for_each(|rank| rank.signal_group(signal));
        self.next = Some((Measure::Kill, Instant::now() + TO_END));
    }
}

/// What a rank runs, and what it is told.
fn command(words: &[OsString], rank: usize, ranks: usize, bootstrap_dir: &Path) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env(BOOTSTRAP_DIR, bootstrap_dir);
    for (name, number) in
        [("RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", ranks)]
    {
        command.env(name, number.to_string());
    }
    // Not the terminal's: who reads there and is in the group of another process than the terminal serves is stopped.
    if rank > 0 || io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    command
}
