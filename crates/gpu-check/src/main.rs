//! Checks and measures arrays on GPUs. `scripts/gpu-check-run` runs it under mpirun, one check at a time. Rank 0 prints a line of JSON.
//!
//! ```sh
//! mpirun -n 2 gpu_check correct NAME [--algorithm auto] [--must-run nccl] [--largest-mib 36]
//! ```

use std::process::ExitCode;

use clap::Parser as _;
use unisono::Communicator;

mod calls;
mod copies;
mod correct;
mod differ;
mod facts;
mod in_flight;
mod operations;
mod prefetch;
mod report;
mod settings;
mod values;

use report::{Failure, Outcome};
use settings::Settings;

/// A check. The last argument is the route of arrays.
type Check = fn(&mut Communicator, &Settings, &str) -> Outcome;

const CHECKS: [(&str, Check); 8] = [
    ("facts", facts::collect),
    ("correct", correct::check),
    ("in-flight", in_flight::check),
    ("copies", copies::measure),
    ("prefetch", prefetch::measure),
    ("calls", calls::measure),
    ("operations", operations::check),
    ("differ", differ::check),
];

fn main() -> ExitCode {
    let settings = Settings::parse();
    let mut comm = match unisono::init() {
        Ok(comm) => comm,
        Err(error) => {
            eprintln!("gpu_check: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = route(&mut comm).and_then(|route| (settings.check)(&mut comm, &settings, &route));
    if let Err(Failure::Failed(why)) = &outcome {
        eprintln!("gpu_check: rank {}: {why}", comm.rank());
    }
    let has_failed = matches!(outcome, Err(Failure::Failed(_)));
    if comm.rank() == 0 {
        println!("{}", report::line(&settings.name, outcome));
    }
    // Under MPI, dropping a failed communicator ends the job.
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns the transport route of arrays. Skips the check if a rank has no GPU.
fn route(comm: &mut Communicator) -> Result<String, Failure> {
    let error = match comm.device_route() {
        Ok(route) => return Ok(route),
        Err(error) => error,
    };
    // All ranks know which rank has no GPU. If nothing else failed, they can still communicate.
    if matches!(error, unisono::Error::Unsupported(_)) && comm.barrier().is_ok() {
        return Err(Failure::Skipped(error.to_string()));
    }
    Err(error.into())
}
