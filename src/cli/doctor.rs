//! `unisono doctor`: what may be wrong with this machine, or with how ranks are launched on it.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args as ClapArgs;
use unisono::doctor::{State, examine};

use super::Failure;
use super::world::World;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    world: World,
}

/// The exit code is 1 if something is wrong.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let is_wrong = AtomicBool::new(false);
    args.world.run(|comm| {
        for finding in examine(comm).map_err(|error| Failure::Error(error.to_string()))? {
            println!("{finding}");
            is_wrong.fetch_or(finding.state == State::Wrong, Ordering::Relaxed);
        }
        Ok(())
    })?;
    Ok(if is_wrong.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
