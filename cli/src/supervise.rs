//! `unisono supervise`: a command that is started again when it fails, and passes signals on.

use std::ffi::OsString;
use std::io;
use std::process::{ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::family::{self, Member, POLL, TO_END, code};
use super::values::{LONGEST_S, whole};
use super::{BAD_INPUT, STOPPED};

mod plan;

use plan::Plan;

/// What is started again, and how often.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// How often to start the command again in a row; the count begins anew whenever there is a new checkpoint
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(0, u32::MAX))]
    max_restarts: u32,
    /// How long to wait before that; twice as long each time in a row, up to a minute
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = whole(0, LONGEST_S))]
    wait_s: u64,
    /// How long the command may take to save and end, when it is to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole(0, LONGEST_S))]
    grace_s: u64,
    /// The command, after --: mpirun … unisono train … --checkpoint-dir DIR
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The longest wait before a restart, unless a longer one is asked for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How one run of the command ended.
struct Ended {
    status: ExitStatus,
    /// Whether it was to stop.
    was_asked: bool,
}

/// Runs the command until it succeeds, is to stop, or cannot go on. The exit code is the command's; 75 if it was to stop.
pub(super) fn run(args: &Args) -> ExitCode {
    match supervise(args) {
        Ok(code) => code,
        Err(error) => {
            say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn say(what: &str) {
    eprintln!("supervise: {what}");
}

fn supervise(args: &Args) -> io::Result<ExitCode> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1])?;
    family::adopt_orphans()?;
    let mut plan = Plan::new(&args.command);
    if let Some(why) = plan.refusal() {
        say(&why);
        return Ok(ExitCode::from(BAD_INPUT));
    }
    let mut newest = plan.newest_of_run();
    let mut in_a_row = 0;
    loop {
        let command = match Member::start(plan.command()) {
            Ok(command) => command,
            Err(error) => {
                say(&format!("cannot start {}: {error}", plan.program().display()));
                return Ok(ExitCode::from(BAD_INPUT));
            }
        };
        let Ended { status, was_asked } = watch(command, &mut signals, Duration::from_secs(args.grace_s))?;
        if status.success() {
            return Ok(ExitCode::SUCCESS);
        }
        let code = code(status);
        let saved = plan.newest_of_run();
        match code {
            BAD_INPUT => {
                say("the command makes no sense (exit code 2), and is not started again");
                return Ok(ExitCode::from(BAD_INPUT));
            }
            STOPPED => return Ok(stopped("it stopped as it was asked to", &plan)),
            _ if was_asked => {
                return Ok(stopped(&format!("{}, when it was to stop", how(status)), &plan));
            }
            _ => {}
        }
        if saved > newest {
            (newest, in_a_row) = (saved, 0);
        }
        if in_a_row == args.max_restarts {
            say(&format!("{}; gives up after {in_a_row} restarts without a new checkpoint", how(status)));
            return Ok(ExitCode::from(code));
        }
        let wait = wait(Duration::from_secs(args.wait_s), in_a_row);
        in_a_row += 1;
        let (how, from, max) = (how(status), plan.from(), args.max_restarts);
        say(&format!("{how}; starts again in {} s, {from}: restart {in_a_row} of {max}", wait.as_secs()));
        if is_asked_within(wait, &mut signals) {
            return Ok(stopped("asked to stop, while nothing ran", &plan));
        }
        plan.resume();
    }
}

/// How long to wait before a restart, after so many in a row.
fn wait(first: Duration, in_a_row: u32) -> Duration {
    let longest = LONGEST_WAIT.max(first);
    first.checked_mul(1 << in_a_row.min(16)).map_or(longest, |wait| wait.min(longest))
}

fn is_asked_within(wait: Duration, signals: &mut Signals) -> bool {
    let began = Instant::now();
    loop {
        if signals.pending().next().is_some() {
            return true;
        }
        let left = wait.saturating_sub(began.elapsed());
        if left.is_zero() {
            return false;
        }
        thread::sleep(left.min(POLL));
    }
}

fn stopped(what: &str, plan: &Plan) -> ExitCode {
    say(&format!("{what}; the next run goes on {}, with --resume (exit code {STOPPED})", plan.from()));
    ExitCode::from(STOPPED)
}

fn how(status: ExitStatus) -> String {
    format!("the command {}", family::how(status))
}

/// What is done next for a command that is to stop, when its time is over.
enum Asked {
    No,
    /// To save and end.
    ToSave,
    /// To end.
    ToEnd,
}

/// Waits for the command to end, and has it stop if this process is told to: first it is asked to save, which a launcher passes on
/// to all ranks, then to end; at last it is killed, with all that it has started. Another signal means: now.
fn watch(mut command: Member, signals: &mut Signals, grace: Duration) -> io::Result<Ended> {
    let (mut asked, mut deadline) = (Asked::No, None);
    let status = loop {
        if let Some(status) = command.poll()? {
            break status;
        }
        let is_told = signals.pending().next().is_some();
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        match asked {
            Asked::No if is_told => {
                say(&format!("has the command save and end, within {} s", grace.as_secs()));
                command.signal(Signal::USR1);
                (asked, deadline) = (Asked::ToSave, Some(Instant::now() + grace));
            }
            Asked::ToSave if is_told || is_over => {
                say("the command has not ended: has it end without saving");
                command.signal(Signal::TERM);
                (asked, deadline) = (Asked::ToEnd, Some(Instant::now() + TO_END));
            }
            Asked::ToEnd if is_told || is_over => {
                say("the command has not ended: kills it");
                command.signal(Signal::KILL);
                deadline = Some(Instant::now() + TO_END);
            }
            _ => {}
        }
        thread::sleep(POLL);
    };
    let left = family::end()?;
    if left > 0 {
        say(&format!("ended {left} processes that the command left behind"));
    }
    Ok(Ended { status, was_asked: !matches!(asked, Asked::No) })
}
