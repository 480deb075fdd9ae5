//! `unisono hang-report`: what happened, from the flight recorders that ranks have written.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use unisono::status::Flight;

use super::Failure;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The folder of the flight recorders: rank-0.json, …
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let flight = Flight::read(&args.folder).map_err(|error| Failure::BadInput(error.to_string()))?;
    for finding in flight.findings() {
        println!("{finding}");
    }
    print!("\n{}", flight.table());
    Ok(())
}
