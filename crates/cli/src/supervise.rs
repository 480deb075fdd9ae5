//! `unisono supervise`: restarts a command when it fails, and forwards signals to it.

use std::ffi::OsString;
use std::io;
use std::process::{ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use rustix::process::Signal;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use super::family::{self, Member, POLL, TO_END, code, code_of_unstarted, reap_orphans};
use super::values::{LONGEST_S, whole};
use super::{BAD_INPUT, STOPPED};

mod plan;

use plan::Plan;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Maximum number of restarts in total
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(0, u32::MAX))]
    max_restarts: u32,
    /// Delay in seconds before a restart; it doubles with each restart without a new checkpoint, up to 60 s
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = whole(0, LONGEST_S))]
    wait_s: u64,
    /// Time in seconds for the command to save a checkpoint and exit after a stop request
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole(0, LONGEST_S))]
    grace_s: u64,
    /// Command to run, after --, such as mpirun … unisono train … --checkpoint-dir DIR
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The maximum wait before a restart, unless `--wait-s` is longer.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The end of one run of the command.
struct Ended {
    status: ExitStatus,
    /// Whether the command was requested to stop.
    was_asked: bool,
}

/// Runs the command until it succeeds, is requested to stop, or exhausts its restarts. Exits with the command's exit code, or with 75 if it was
/// requested to stop.
pub(super) fn run(args: &Args) -> ExitCode {
    supervise(args).unwrap_or_else(|error| {
        print_message(&error.to_string());
        ExitCode::FAILURE
    })
}

fn print_message(what: &str) {
    eprintln!("supervise: {what}");
}

fn supervise(args: &Args) -> io::Result<ExitCode> {
    let mut signals = Signals::new(family::heeded())?;
    family::adopt_orphans()?;
    let mut plan = Plan::new(&args.command);
    if let Some(why) = plan.refusal() {
        print_message(&why);
        return Ok(ExitCode::from(BAD_INPUT));
    }
    let mut newest = plan.newest_of_run();
    let (mut restarts, mut in_a_row) = (0, 0);
    loop {
        let command = match Member::start(plan.command()) {
            Ok(command) => command,
            Err(error) => {
                print_message(&format!("cannot run `{}`: {error}", plan.program().display()));
                return Ok(ExitCode::from(code_of_unstarted(&error)));
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
                print_message("the command is invalid (exit code 2); not restarting");
                return Ok(ExitCode::from(BAD_INPUT));
            }
            // As a shell and a launcher exit if they cannot run it.
            126 | 127 => {
                print_message(&format!("the command cannot be run (exit code {code}); not restarting"));
                return Ok(ExitCode::from(code));
            }
            STOPPED => return Ok(stopped("the command stopped on request", &plan)),
            _ if was_asked => {
                return Ok(stopped(&format!("{} after a stop request", how(status)), &plan));
            }
            _ => {}
        }
        if saved > newest {
            (newest, in_a_row) = (saved, 0);
        }
        if restarts == args.max_restarts {
            print_message(&format!("{}; giving up after {restarts} restarts", how(status)));
            return Ok(ExitCode::from(code));
        }
        let wait = wait(Duration::from_secs(args.wait_s), in_a_row);
        restarts += 1;
        in_a_row += 1;
        let (how, from, max, wait_s) = (how(status), plan.from(), args.max_restarts, wait.as_secs());
        print_message(&format!("{how}; restarting in {wait_s} s {from}: restart {restarts} of {max}"));
        if is_asked_within(wait, &mut signals) {
            return Ok(stopped("stop requested between two runs", &plan));
        }
        plan.resume();
    }
}

/// Returns the wait before a restart, after this many consecutive ones.
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
    let next = if plan.saves() {
        format!("; with --resume the next run starts {}", plan.from())
    } else {
        String::new()
    };
    print_message(&format!("{what}{next} (exit code {STOPPED})"));
    ExitCode::from(STOPPED)
}

fn how(status: ExitStatus) -> String {
    format!("the command {}", family::how(status))
}

/// The latest request to a command to stop.
enum Asked {
    No,
    /// Save a checkpoint and exit.
    ToSave,
    ToEnd,
}

/// Waits for the command to end, and stops it if this process receives a signal. It first requests a checkpoint, which a launcher forwards to all
/// ranks, then sends SIGTERM, and finally kills the command and all its descendants. A later signal skips to the next stage, except SIGHUP, which a
/// closed terminal sends twice.
fn watch(mut command: Member, signals: &mut Signals, grace: Duration) -> io::Result<Ended> {
    let (mut asked, mut deadline) = (Asked::No, None);
    let mut reaped = Instant::now();
    let status = loop {
        if let Some(status) = command.child.try_wait().transpose() {
            break status;
        }
        reap_orphans(&mut reaped, |pid| pid == command.child.id());
        // Signals that arrive together are one request.
        let arrived: Vec<_> = signals.pending().collect();
        let is_impatient = arrived.iter().any(|&signal| signal != SIGHUP);
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        match asked {
            Asked::No if !arrived.is_empty() => {
                print_message(&format!("requesting a checkpoint and an exit within {} s", grace.as_secs()));
                command.signal(Signal::USR1);
                (asked, deadline) = (Asked::ToSave, Some(Instant::now() + grace));
            }
            Asked::ToSave if is_impatient || is_over => {
                print_message("the command is still running: terminating it without saving");
                command.signal(Signal::TERM);
                (asked, deadline) = (Asked::ToEnd, Some(Instant::now() + TO_END));
            }
            Asked::ToEnd if is_impatient || is_over => {
                print_message("the command is still running: killing it");
                command.signal(Signal::KILL);
                deadline = Some(Instant::now() + TO_END);
            }
            _ => {}
        }
        thread::sleep(POLL);
    };
    let left = family::end()?;
    if left > 0 {
        print_message(&format!("killed {left} processes that the command left behind"));
    }
    Ok(Ended { status: status?, was_asked: !matches!(asked, Asked::No) })
}
