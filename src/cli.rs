//! The command line: one file for each sub-command, and nothing in them that a user of the library would
//! miss.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use unisono::config::Launcher;

mod algorithms;
mod bench;
#[cfg(feature = "candle")]
mod bench_step;
mod doctor;
#[cfg(feature = "candle")]
mod evaluate;
mod explain;
mod hang_report;
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
mod verify;
mod world;

/// Collective communication for data-parallel training.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a model on all ranks together
    #[cfg(feature = "candle")]
    Train(Box<train::Args>),
    /// Measure a saved model on data
    #[cfg(feature = "candle")]
    Evaluate(evaluate::Args),
    /// Ask a saved model: the class of samples or images, or how a text goes on
    #[cfg(feature = "candle")]
    Predict(predict::Args),
    /// Measure how long a step of training takes, and where its time goes
    #[cfg(feature = "candle")]
    BenchStep(bench_step::Args),
    /// Measure all-reduce algorithms against each other
    Bench(bench::Args),
    /// Look for what is wrong with this machine, or with how ranks are launched on it
    Doctor(doctor::Args),
    /// Draw the schedule of an algorithm
    Explain(explain::Args),
    /// Say what happened, from the flight recorders that ranks have written
    HangReport(hang_report::Args),
    /// Draw what bench measured: time and bus bandwidth over the size of the array
    Plot(plot::Args),
    /// Prove algorithms right, for every rank of every world asked for
    Verify(verify::Args),
    /// Measure what `auto` and predictions go by, and write it to a file
    Tune(tune::Args),
    /// Say how long all-reduces would take on machines that are not here
    Simulate(simulate::Args),
    /// Run a command such as `mpirun … unisono train …`, and start it again from its last checkpoint when it fails
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

/// Runs the command; its exit code: 0, 1 if something went wrong, 2 if the command makes no sense, 75 if it was asked to stop.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Every rank reads the same command line, and one answer is enough.
            if !speaks() {
                return LEFT_TO_ANOTHER;
            }
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(BAD_INPUT));
        }
    };
    let result = match cli.command {
        #[cfg(feature = "candle")]
        Command::Train(args) => train::run(&args),
        #[cfg(feature = "candle")]
        Command::Evaluate(args) => evaluate::run(&args),
        #[cfg(feature = "candle")]
        Command::Predict(args) => predict::run(&args),
        #[cfg(feature = "candle")]
        Command::BenchStep(args) => bench_step::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => match doctor::run(&args) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Explain(args) => explain::run(&args),
        Command::HangReport(args) => hang_report::run(&args),
        Command::Plot(args) => plot::run(&args),
        Command::Verify(args) => return verify::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Supervise(args) => return supervise::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::BadInput(message)) => {
            eprintln!("unisono: {message}");
            ExitCode::from(BAD_INPUT)
        }
        Err(Failure::SaidElsewhere) => LEFT_TO_ANOTHER,
        #[cfg(feature = "candle")]
        Err(Failure::Stopped) => ExitCode::from(STOPPED),
        Err(Failure::Said) => ExitCode::FAILURE,
        Err(Failure::Error(message)) => {
            eprintln!("unisono: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Whether this process is the one that talks before ranks know each other: the launcher's rank 0, or the
/// only process.
fn speaks() -> bool {
    Launcher::detect().rank.is_none_or(|rank| rank == 0)
}
