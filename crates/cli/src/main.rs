//! The command `unisono`, with one file per subcommand. All functionality is also available from the library.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "all output goes through output.rs")]

use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::{Parser, Subcommand};
use unisono::config::{Launcher, warn_of_unread_settings};

#[macro_use]
mod output;

mod accelerate;
mod bench;
#[cfg(feature = "candle")]
mod bench_step;
mod completions;
mod doctor;
#[cfg(feature = "candle")]
mod evaluate;
mod explain;
mod family;
mod features;
mod hang_report;
#[cfg(feature = "candle")]
mod inspect_input;
mod launch;
#[cfg(feature = "plot")]
mod plot;
#[cfg(feature = "candle")]
mod predict;
mod replace;
#[cfg(feature = "service")]
mod serve_data;
mod simulate;
mod supervise;
mod trace;
#[cfg(feature = "candle")]
mod train;
mod tune;
mod usage;
mod values;
mod verify;
mod warnings;
mod world;

use usage::Unrun;

/// The system's allocator returns large blocks to the kernel immediately, so candle would spend a third of a step in page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Collective communication for data-parallel training.
#[derive(Debug, Parser)]
#[command(name = "unisono", version, long_version = features::VERSION.as_str(), max_term_width = 100, styles = STYLES, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const AFTER_HELP: &str = "\
Examples:
  mpirun -n 2 unisono bench   Ranks are processes
  unisono train --threads 2   Ranks are threads

See `unisono help COMMAND` for the options of a command.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an unmodified MPI program with Unisono's collectives
    Accelerate(accelerate::Args),
    /// Train a model, data-parallel over all ranks
    #[cfg(feature = "candle")]
    Train(Box<train::Args>),
    /// Run an input pipeline without training, and report its bottleneck
    #[cfg(feature = "candle")]
    InspectInput(Box<inspect_input::Args>),
    /// Serve batches of a data set for training on other machines
    #[cfg(feature = "service")]
    ServeData(Box<serve_data::Args>),
    /// Evaluate a saved model on a data set
    #[cfg(feature = "candle")]
    Evaluate(evaluate::Args),
    /// Classify samples or continue a text with a saved model
    #[cfg(feature = "candle")]
    Predict(predict::Args),
    /// Benchmark a training step and break down its time
    #[cfg(feature = "candle")]
    BenchStep(bench_step::Args),
    /// Benchmark all-reduce and the other collectives
    Bench(bench::Args),
    /// Print the completion script for a shell
    Completions(completions::Args),
    /// Diagnose this machine and the launch
    Doctor(doctor::Args),
    /// Draw the schedule of an algorithm
    Explain(explain::Args),
    /// Explain a hang or failure from the ranks' flight recorders
    HangReport(hang_report::Args),
    /// Start a command on N ranks, without MPI
    Launch(launch::Args),
    /// Run the part of this host in a launch with --hosts
    #[command(hide = true)]
    LaunchPart,
    /// Plot benchmark results as SVG
    #[cfg(feature = "plot")]
    Plot(plot::Args),
    /// Merge the ranks' traces of UNISONO_TRACE into one file for Perfetto
    Trace(trace::Args),
    /// Verify algorithms for every rank of a range of world sizes
    Verify(verify::Args),
    /// Measure this machine to tune the cost model of `auto`
    Tune(tune::Args),
    /// Predict the time of all-reduces or training steps on a cluster
    Simulate(Box<simulate::Args>),
    /// Run a training command and restart it when it fails
    Supervise(supervise::Args),
}

#[derive(Debug)]
pub(crate) enum Failure {
    /// The request is invalid. Every rank detects this, and one of them reports it.
    BadInput(String),
    /// The request is invalid, and another rank reports it.
    ReportedElsewhere,
    /// The command to run cannot be started, for this reason. The exit code is the one that a shell would return.
    Unstarted(String, u8),
    /// Something failed at run time.
    Error(String),
    /// Something failed at run time, and the ranks have already reported it.
    Reported,
    /// The command stopped early on request.
    Stopped,
}

impl Failure {
    /// Returns the failure for an invalid request, which all ranks detect. This rank reports it if `reports` is set.
    fn refusal(reports: bool, why: impl ToString) -> Self {
        if reports { Self::BadInput(why.to_string()) } else { Self::ReportedElsewhere }
    }
}

impl From<unisono::Error> for Failure {
    fn from(error: unisono::Error) -> Self {
        Self::Error(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Error(error.to_string())
    }
}

const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;
/// Stopped on request, with a checkpoint to resume from. The code is BSD's `EX_TEMPFAIL`, which invites a retry.
const STOPPED: u8 = 75;

/// The delay before the other ranks fail. A launcher ends the whole job when a rank fails, perhaps before the reporting rank has reported.
const TO_REPORT: Duration = Duration::from_secs(1);

/// The time for which a rank that does not join the others tries to inform them.
const TO_REFUSE: Duration = Duration::from_secs(10);

const SHOWS_HELP: &str = "it was started with --help or --version, or without a command";

/// Runs the command. The exit code is 0 on success, 1 on failure, 2 if the command is invalid, 75 if it stopped on request, and 126 or 127 if the
/// command that it runs cannot be started.
fn main() -> ExitCode {
    warnings::show();
    if is_reporter() {
        warn_of_unread_settings();
    }
    match usage::parse(std::env::args_os()) {
        Ok(cli) => run(cli.command).unwrap_or_else(|failure| failed(&failure)),
        Err(Unrun::Help(help)) => show_help(&help),
        Err(Unrun::Invalid(why)) => failed(&refused(why)),
    }
}

impl Command {
    /// Returns whether one process computes and prints the result, even if there are several ranks.
    fn is_of_one_process(&self) -> bool {
        match self {
            Self::Completions(_)
            | Self::Explain(_)
            | Self::HangReport(_)
            | Self::Simulate(_)
            | Self::Trace(_)
            | Self::Verify(_) => true,
            #[cfg(feature = "candle")]
            Self::InspectInput(_) => true,
            #[cfg(feature = "plot")]
            Self::Plot(_) => true,
            _ => false,
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    if command.is_of_one_process() && !is_reporter() {
        return Ok(ExitCode::SUCCESS);
    }
    match command {
        Command::Accelerate(args) => return Err(accelerate::run(&args)),
        #[cfg(feature = "candle")]
        Command::Train(args) => train::run(&args)?,
        #[cfg(feature = "candle")]
        Command::InspectInput(args) => inspect_input::run(&args)?,
        #[cfg(feature = "service")]
        Command::ServeData(args) => serve_data::run(*args)?,
        #[cfg(feature = "candle")]
        Command::Evaluate(args) => evaluate::run(&args)?,
        #[cfg(feature = "candle")]
        Command::Predict(args) => predict::run(&args)?,
        #[cfg(feature = "candle")]
        Command::BenchStep(args) => bench_step::run(&args)?,
        Command::Bench(args) => bench::run(&args)?,
        Command::Completions(args) => completions::run(&args),
        Command::Doctor(args) => return doctor::run(&args),
        Command::Explain(args) => explain::run(&args)?,
        Command::HangReport(args) => hang_report::run(&args)?,
        Command::Launch(args) => return launch::run(&args),
        Command::LaunchPart => return Ok(launch::run_part()),
        #[cfg(feature = "plot")]
        Command::Plot(args) => plot::run(&args)?,
        Command::Trace(args) => trace::run(&args)?,
        Command::Verify(args) => return verify::run(&args),
        Command::Tune(args) => tune::run(&args)?,
        Command::Simulate(args) => simulate::run(&args)?,
        Command::Supervise(args) => return Ok(supervise::run(&args)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports why a command failed, if this rank is the one to report it.
fn failed(failure: &Failure) -> ExitCode {
    let (message, code) = match failure {
        Failure::ReportedElsewhere => return left_to_another(BAD_INPUT),
        // All ranks find the same error.
        Failure::Unstarted(_, code) if !is_reporter() => return left_to_another(*code),
        Failure::Stopped => return ExitCode::from(STOPPED),
        Failure::Reported => return ExitCode::FAILURE,
        Failure::BadInput(message) => (message, BAD_INPUT),
        Failure::Unstarted(message, code) => (message, *code),
        Failure::Error(message) => (message, FAILED),
    };
    eprintln!("unisono: {message}");
    ExitCode::from(code)
}

/// Returns the exit code of a rank that fails, after a delay for another rank to report the error.
fn left_to_another(code: u8) -> ExitCode {
    thread::sleep(TO_REPORT);
    ExitCode::from(code)
}

/// Shows help, on request or because the command line is empty.
fn show_help(help: &clap::Error) -> ExitCode {
    let code = u8::try_from(help.exit_code()).unwrap_or(BAD_INPUT);
    if is_reporter()
        && let Err(error) = help.print()
        && !help.use_stderr()
    {
        output::end(&error);
    }
    if !is_launched() {
        return ExitCode::from(code);
    }
    // The other ranks may run another command, and would wait for this one.
    exit_after_refusal(code, None);
    match report_to_all(SHOWS_HELP) {
        Some(why) if why != SHOWS_HELP => failed(&Failure::refusal(is_reporter(), why)),
        _ if is_reporter() || code == 0 => ExitCode::from(code),
        _ => left_to_another(code),
    }
}

/// Returns an error that this rank detects before it has connected. The other ranks would wait for it, so it informs them, and all fail with the
/// error of the first rank that has one.
fn refused(why: String) -> Failure {
    if !is_launched() {
        return Failure::BadInput(why);
    }
    exit_after_refusal(BAD_INPUT, Some(why.clone()));
    Failure::refusal(is_reporter(), report_to_all(&why).unwrap_or(why))
}

fn is_launched() -> bool {
    matches!(Launcher::detect().ranks, Some(2..))
}

/// Ends this process with this message if it cannot inform the others in time, because they may be busy with local work.
fn exit_after_refusal(code: u8, message: Option<String>) {
    let alone = move || {
        thread::sleep(TO_REFUSE);
        if let Some(message) = message {
            eprintln!("unisono: {message}");
        }
        signal_hook::low_level::exit(code.into())
    };
    let _ = thread::Builder::new().name("deadline".into()).spawn(alone);
}

/// Informs all ranks. Returns the message that each rank must print, if they could be reached.
fn report_to_all(why: &str) -> Option<String> {
    match unisono::refuse(why) {
        unisono::Error::Setting(why) => Some(why),
        _ => None,
    }
}

/// Returns whether this process prints before the ranks are connected: it is the launcher's rank 0, the only process, or not in the world that it
/// names, in which case no rank 0 has its error.
fn is_reporter() -> bool {
    let Launcher { rank, ranks, .. } = Launcher::detect();
    rank.is_none_or(|rank| rank == 0 || ranks.is_some_and(|ranks| rank >= ranks))
}
