//! Checks and measures arrays on GPUs. `scripts/gpu-check-run` runs it under mpirun, one check at a time. Rank 0 prints a line of JSON.
//!
//! ```sh
//! mpirun -n 2 gpu_check correct NAME [--algorithm auto] [--must-run nccl] [--largest-mib 36]
//! ```

use std::process::ExitCode;

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
use settings::{Kind, Settings};

fn main() -> ExitCode {
    let settings = match Settings::parse(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(why) => {
            eprintln!("gpu_check: {why}");
            return ExitCode::from(2);
        }
    };
    let mut comm = match unisono::init() {
        Ok(comm) => comm,
        Err(error) => {
            eprintln!("gpu_check: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = check(&mut comm, &settings);
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

fn check(comm: &mut Communicator, settings: &Settings) -> Outcome {
    let route = route(comm)?;
    match settings.kind {
        Kind::Facts => facts::collect(comm, &route),
        Kind::Correct => correct::check(comm, settings, &route),
        Kind::InFlight => in_flight::check(comm, settings, &route),
        Kind::Copies => copies::measure(comm),
        Kind::Prefetch => prefetch::measure(comm),
        Kind::Calls => calls::measure(comm, &route),
        Kind::Operations => operations::check(comm, settings, &route),
        Kind::Differ => differ::check(),
    }
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
