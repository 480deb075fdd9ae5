//! `unisono doctor`: diagnoses this machine and the launch.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args as ClapArgs;
use unisono_bench::doctor::{Finding, State, examine, examine_refused};

use super::world::World;
use super::{Failure, left_to_another, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    world: World,
}

/// The column where the text of a finding begins, after its state and its subject.
const FINDING_AT: usize = 19;

const WRONG: u8 = 1;

/// Exits with [`WRONG`] if a finding is wrong, on this rank or on the rank that reports it.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let is_wrong = AtomicBool::new(false);
    let print_findings = |findings: Vec<Finding>| {
        for finding in findings {
            println!("{}", output::broken(&finding.to_string(), FINDING_AT));
            is_wrong.fetch_or(finding.state == State::Wrong, Ordering::Relaxed);
        }
    };
    let ran = args.world.run(|comm| {
        print_findings(examine(comm)?);
        Ok(())
    });
    match ran {
        // A failure to form a world is a finding, not a failure of the command.
        Err(Failure::BadInput(why)) => print_findings(examine_refused(&why)),
        Err(Failure::ReportedElsewhere) => return Ok(left_to_another(WRONG)),
        ran => ran?,
    }
    Ok(ExitCode::from(if is_wrong.into_inner() { WRONG } else { 0 }))
}
