//! `unisono trace`: merges the traces of all ranks into one file. Flows connect each call across ranks.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use super::Failure;
use super::replace::Replacement;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Directory of the traces: trace-rank-0.json, …
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// File to write, for Perfetto or chrome://tracing [default: DIR/trace.json]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The start times of the same call on its ranks, in order.
#[derive(Debug, Default)]
struct Call {
    id: usize,
    starts: Vec<(f64, u64)>,
}

impl Call {
    /// Returns whether a flow leads to this rank, and whether one leads from it. A flow leads from each rank to the one that starts next.
    fn flows(&self, rank: u64) -> (bool, bool) {
        let ends = [self.starts.first(), self.starts.last()];
        let [is_first, is_last] = ends.map(|end| end.is_some_and(|&(_, of)| of == rank));
        (!is_first, !is_last)
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let files = files(&args.folder)?;
    let output = args.output.clone().unwrap_or_else(|| args.folder.join("trace.json"));
    refuse_overwriting(&files, &output)?;
    let (mut calls, mut ranges_us) = (BTreeMap::<String, Call>::new(), Vec::new());
    for file in &files {
        let mut range_us = (f64::INFINITY, f64::NEG_INFINITY);
        events(file, |event| {
            let Some(ts) = event["ts"].as_f64() else { return Ok(()) };
            range_us = (range_us.0.min(ts), range_us.1.max(ts));
            if let (Some(name), Some(rank)) = (event["args"]["call"].as_str(), event["pid"].as_u64()) {
                let id = calls.len() + 1;
                let call = calls.entry(name.to_owned()).or_insert(Call { id, starts: Vec::new() });
                call.starts.push((ts, rank));
            }
            Ok(())
        })?;
        ranges_us.push(range_us);
    }
    warn_of_older(&files, &ranges_us);
    let first_us = ranges_us.iter().map(|range_us| range_us.0).fold(f64::INFINITY, f64::min);
    calls.values_mut().for_each(|call| call.starts.sort_by(|one, other| one.0.total_cmp(&other.0)));
    let mut merged = Replacement::create(&output)?;
    write!(merged, r#"{{"displayTimeUnit":"ns","traceEvents":["#)?;
    let mut before = "\n";
    for file in &files {
        events(file, |mut event| {
            connect(&mut event, &calls, first_us);
            write!(merged, "{}{event}", std::mem::replace(&mut before, ",\n"))
        })?;
    }
    writeln!(merged, "\n]}}")?;
    merged.finish()?;
    println!("{}: {} ranks; open it at https://ui.perfetto.dev", output.display(), files.len());
    Ok(())
}

/// Rejects an output that is one of the traces, which would be lost.
fn refuse_overwriting(files: &[PathBuf], output: &Path) -> Result<(), Failure> {
    let output = output.canonicalize().ok();
    match files.iter().find(|file| output.is_some() && file.canonicalize().ok() == output) {
        Some(file) => Err(Failure::BadInput(format!(
            "--output must not be the trace of a rank, got `{}`: name another file",
            file.display()
        ))),
        None => Ok(()),
    }
}

/// Warns of traces that end before the newest one begins. An earlier run with more ranks leaves some in the folder.
fn warn_of_older(files: &[PathBuf], ranges_us: &[(f64, f64)]) {
    let newest = ranges_us.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    for (file, (first_us, last_us)) in files.iter().zip(ranges_us) {
        if first_us <= last_us && newest.is_some_and(|newest| *last_us < newest.0) {
            eprintln!(
                "unisono: `{}` ends before the newest trace begins: an earlier run may have left it there",
                file.display()
            );
        }
    }
}

/// Shifts times so that the trace starts at 0, and connects an event to the other ranks' events of the same call.
fn connect(event: &mut Value, calls: &BTreeMap<String, Call>, first_us: f64) {
    let Some(ts) = event["ts"].as_f64() else { return };
    event["ts"] = json!(ts - first_us);
    let call = event["args"]["call"].as_str().and_then(|name| calls.get(name));
    if let (Some(call), Some(rank)) = (call, event["pid"].as_u64()) {
        let (flow_in, flow_out) = call.flows(rank);
        if flow_in || flow_out {
            event["bind_id"] = json!(format!("{:#x}", call.id));
            event["flow_in"] = json!(flow_in);
            event["flow_out"] = json!(flow_out);
        }
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |error| Failure::BadInput(format!("cannot read `{}`: {error}", folder.display()));
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let rank = name.strip_prefix("trace-rank-").and_then(|name| name.strip_suffix(".json"));
        if let Some(rank) = rank.and_then(|rank| rank.parse::<usize>().ok()) {
            files.insert(rank, path);
        }
    }
    if files.is_empty() {
        return Err(Failure::BadInput(format!(
            "there are no traces (trace-rank-0.json, …) in `{}`",
            folder.display()
        )));
    }
    Ok(files.into_values().collect())
}

/// Passes on the events of a file, one per line. All are objects with the rank as `pid`.
fn events(file: &Path, mut each: impl FnMut(Value) -> Result<(), Failure>) -> Result<(), Failure> {
    let bad =
        |why: String| Failure::BadInput(format!("`{}` is not the trace of a rank: {why}", file.display()));
    let lines = BufReader::new(File::open(file).map_err(|error| bad(error.to_string()))?).lines();
    let mut is_complete = false;
    for (number, line) in lines.enumerate().skip(1) {
        let line = line.map_err(|error| bad(error.to_string()))?;
        if line == "]}" {
            is_complete = true;
            break;
        }
        let bad = |why: String| bad(format!("line {}: {why}", number + 1));
        let event: Value =
            serde_json::from_str(line.trim_end_matches(',')).map_err(|error| bad(error.to_string()))?;
        if !event["pid"].is_u64() {
            return Err(bad("missing field `pid`".to_owned()));
        }
        each(event)?;
    }
    if is_complete { Ok(()) } else { Err(bad("it is truncated".to_owned())) }
}
