//! `unisono plot`: draws the rows of `unisono bench --format json`.

use std::fs;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use unisono_bench::Operation;

use super::Failure;
use super::replace::Replacement;
use super::values::named;

mod axis;
mod figure;
mod look;
mod row;
mod series;

use series::Comparison;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Files written by `unisono bench --format json`
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// Operation to plot, if the files contain several
    #[arg(long, value_parser = named(Operation::ALL.map(Operation::name), str::parse::<Operation>))]
    operation: Option<Operation>,
    /// SVG file to write: time and bus bandwidth over array size
    #[arg(long, value_name = "FIGURE.svg", value_parser = svg)]
    out: PathBuf,
}

/// Accepts only `.svg`. Another extension suggests another format, and a file of results must never be overwritten.
fn svg(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    if path.extension().is_some_and(|extension| extension == "svg") && !path.is_dir() {
        Ok(path)
    } else {
        Err("expected a file name that ends in .svg".to_owned())
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let comparison = read(&args.results, args.operation).map_err(Failure::BadInput)?;
    let figure = figure::draw(&comparison).map_err(|error| Failure::Error(error.to_string()))?;
    let mut out = Replacement::create(&args.out)?;
    write!(out, "{figure}")?;
    out.finish()
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
