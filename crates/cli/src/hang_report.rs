//! `unisono hang-report`: explains a hang or failure from the ranks' flight recorders.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use unisono::status::Flight;

use super::Failure;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Directory of the flight recorders: rank-0.json, …
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
