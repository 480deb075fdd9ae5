//! The command `unisono`: one file for each sub-command, and nothing in them that a user of the library would miss.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "all that is said goes through output.rs")]

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::{Parser, Subcommand};
use unisono::config::{Launcher, warn_of_unread_settings};

#[macro_use]
mod output;

mod algorithms;
mod bench;
#[cfg(feature = "candle")]
mod bench_step;
mod doctor;
#[cfg(feature = "candle")]
mod evaluate;
mod explain;
mod family;
mod hang_report;
mod launch;
mod plot;
#[cfg(feature = "candle")]
mod predict;
#[cfg(feature = "candle")]
mod progress;
mod simulate;
mod supervise;
#[cfg(feature = "candle")]
mod train;
mod tune;
mod usage;
mod values;
mod verify;
mod world;

use usage::Unrun;

/// The system's allocator gives large blocks back to the system at once, and candle would spend a third of
/// a step in page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Collective communication for data-parallel training.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, styles = STYLES, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The colours of cargo's help.
const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const AFTER_HELP: &str = "\
Ranks are processes under mpirun, or threads:
  mpirun -n 2 unisono bench --against mpi
  unisono train --threads 2

See `unisono help COMMAND` for what a command takes.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a model on all ranks together
    #[cfg(feature = "candle")]
    Train(Box<train::Args>),
    /// Measure a saved model on data
    #[cfg(feature = "candle")]
    Evaluate(evaluate::Args),
    /// Ask a saved model for classes, or for how a text goes on
    #[cfg(feature = "candle")]
    Predict(predict::Args),
    /// Measure where the time of a training step goes
    #[cfg(feature = "candle")]
    BenchStep(bench_step::Args),
    /// Measure algorithms and vendors against each other: all-reduce and every other operation
    Bench(bench::Args),
    /// Look for what is wrong with this machine, or with a launch
    Doctor(doctor::Args),
    /// Draw the schedule of an algorithm
    Explain(explain::Args),
    /// Say what happened, from the flight recorders of ranks
    HangReport(hang_report::Args),
    /// Start a command as the ranks of a world, on this machine and without MPI
    Launch(launch::Args),
    /// Draw what bench measured, as SVG
    Plot(plot::Args),
    /// Prove algorithms right, for every rank of many worlds
    Verify(verify::Args),
    /// Measure what `auto` and predictions go by
    Tune(tune::Args),
    /// Predict how long all-reduces take on machines that are not here
    Simulate(simulate::Args),
    /// Run a training command, and start it again when it fails
    Supervise(supervise::Args),
}

/// How figures are told.
#[cfg(feature = "candle")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Figures {
    /// For a person
    Human,
    /// A JSON object a line
    Json,
}

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The user asked for something that cannot be; on all ranks alike, so that one of them says it.
    BadInput(String),
    /// Another rank says what the user asked for that cannot be.
    SaidElsewhere,
    /// Something went wrong on the way.
    Error(String),
    /// The same, and the ranks have said what.
    Said,
    /// It was asked to stop before its end, and did so.
    #[cfg(feature = "candle")]
    Stopped,
}

const BAD_INPUT: u8 = 2;
/// What was asked to stop has saved what there is to go on from: BSD's `EX_TEMPFAIL`, which invites to try again.
const STOPPED: u8 = 75;

/// A launcher ends the whole job when a rank fails, perhaps before the one that speaks has spoken; so the
/// others leave quietly, and the job's exit code is that of the rank that says why.
const LEFT_TO_ANOTHER: ExitCode = ExitCode::SUCCESS;

/// For how long a rank that finds its command line wrong tries to tell the others.
const TO_REFUSE: Duration = Duration::from_secs(10);

/// Runs the command; its exit code: 0, 1 if something went wrong, 2 if the command makes no sense, 75 if it was asked to stop.
fn main() -> ExitCode {
    if speaks() {
        warn_of_unread_settings();
    }
    match usage::parse(std::env::args_os()) {
        Ok(cli) => run(cli.command).unwrap_or_else(|failure| failed(&failure)),
        Err(Unrun::Help(help)) => told(&help),
        Err(Unrun::Nonsense(why)) => failed(&refused(why)),
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        #[cfg(feature = "candle")]
        Command::Train(args) => train::run(&args)?,
        #[cfg(feature = "candle")]
        Command::Evaluate(args) => evaluate::run(&args)?,
        #[cfg(feature = "candle")]
        Command::Predict(args) => predict::run(&args)?,
        #[cfg(feature = "candle")]
        Command::BenchStep(args) => bench_step::run(&args)?,
        Command::Bench(args) => bench::run(&args)?,
        Command::Doctor(args) => return doctor::run(&args),
        Command::Explain(args) => explain::run(&args)?,
        Command::HangReport(args) => hang_report::run(&args)?,
        Command::Launch(args) => return launch::run(&args),
        Command::Plot(args) => plot::run(&args)?,
        Command::Verify(args) => return Ok(verify::run(&args)),
        Command::Tune(args) => tune::run(&args)?,
        Command::Simulate(args) => simulate::run(&args)?,
        Command::Supervise(args) => return Ok(supervise::run(&args)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Says why a command did not succeed, if that is this process's to say.
fn failed(failure: &Failure) -> ExitCode {
    match failure {
        Failure::BadInput(message) => {
            eprintln!("unisono: {message}");
            ExitCode::from(BAD_INPUT)
        }
        Failure::SaidElsewhere => LEFT_TO_ANOTHER,
        #[cfg(feature = "candle")]
        Failure::Stopped => ExitCode::from(STOPPED),
        Failure::Said => ExitCode::FAILURE,
        Failure::Error(message) => {
            eprintln!("unisono: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Shows help that was asked for, or that somebody needs who asked for nothing.
fn told(help: &clap::Error) -> ExitCode {
    if !speaks() {
        return LEFT_TO_ANOTHER;
    }
    match help.print() {
        Err(error) if !help.use_stderr() => output::end(&error),
        _ => ExitCode::from(u8::try_from(help.exit_code()).unwrap_or(BAD_INPUT)),
    }
}

/// What this process finds wrong before it knows the ranks that were launched with it. They would wait for it; so it tells them, and
/// all fail with what the first of them finds.
fn refused(why: String) -> Failure {
    let Some(2..) = Launcher::detect().ranks else { return Failure::BadInput(why) };
    let said = why.clone();
    // The others may be at something that they do by themselves.
    let alone = move || {
        thread::sleep(TO_REFUSE);
        eprintln!("unisono: {said}");
        signal_hook::low_level::exit(BAD_INPUT.into())
    };
    let _ = thread::Builder::new().name("deadline".into()).spawn(alone);
    let why = told_to_all(&why).unwrap_or(why);
    if speaks() { Failure::BadInput(why) } else { Failure::SaidElsewhere }
}

/// Tells all ranks; what each of them then says, if they could be told.
fn told_to_all(why: &str) -> Option<String> {
    match unisono::refuse(why) {
        unisono::Error::Setting(why) => Some(why),
        _ => None,
    }
}

/// Whether this process is the one that talks before ranks know each other: the launcher's rank 0, or the
/// only process.
fn speaks() -> bool {
    Launcher::detect().rank.is_none_or(|rank| rank == 0)
}
