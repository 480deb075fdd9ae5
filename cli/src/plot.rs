//! `unisono plot`: rows of `unisono bench --format json`, drawn.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use unisono::bench::Operation;

use super::values::named;
use super::{Failure, speaks};

mod axis;
mod figure;
mod look;
mod row;
mod series;

use series::Comparison;

/// What is drawn, and where it goes.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Files that `unisono bench --format json` wrote
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// The operation that is drawn, where the files have rows of several
    #[arg(long, value_parser = named(Operation::ALL.map(Operation::name), str::parse::<Operation>))]
    operation: Option<Operation>,
    /// The figure: time and bus bandwidth over the size of the array
    #[arg(long, value_name = "FIGURE.svg", value_parser = svg)]
    out: PathBuf,
}

/// Another ending would promise another format; and results do not end so, and are not overwritten.
fn svg(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    if path.extension().is_some_and(|extension| extension == "svg") && !path.is_dir() {
        Ok(path)
    } else {
        Err("the figure is drawn as SVG: expected the name of a file that ends in .svg".to_owned())
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if !speaks() {
        return Ok(());
    }
    let comparison = read(&args.results, args.operation).map_err(Failure::BadInput)?;
    let figure = figure::draw(&comparison).map_err(|error| Failure::Error(error.to_string()))?;
    write(&args.out, &figure)
}

fn read(paths: &[PathBuf], operation: Option<Operation>) -> Result<Comparison, String> {
    let mut rows = Vec::new();
    for path in paths {
        let file = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|error| format!("cannot read `{file}`: {error}"))?;
        rows.extend(row::read(&file, &text, operation)?);
    }
    Comparison::of(&rows)
}

/// Writes beside the target and renames, so that there is a whole figure or none.
fn write(path: &Path, figure: &str) -> Result<(), Failure> {
    let unfinished = path.with_extension(format!("svg.{}", std::process::id()));
    let said = |error| format!("cannot write `{}`: {error}", path.display());
    // A directory that is not there, or not ours, is the user's to mend; a disk that is full is not.
    let mut file = File::create(&unfinished).map_err(|error| Failure::BadInput(said(error)))?;
    file.write_all(figure.as_bytes()).and_then(|()| fs::rename(&unfinished, path)).map_err(|error| {
        // What is said is why there is no figure, not why its beginning cannot be removed.
        let _ = fs::remove_file(&unfinished);
        Failure::Error(said(error))
    })
}
