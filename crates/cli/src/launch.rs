//! `unisono launch`: starts the ranks of a world as processes on this machine, or its part of them on each of several, without MPI.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tempfile::TempDir;
use unisono::config::Launcher;

use super::family;
use super::values::{LONGEST_S, whole};
use super::{BAD_INPUT, Failure, speaks};

mod ranks;

use ranks::{Meeting, Place, Ranks};

/// The command, and how many ranks of it to start.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Number of ranks to start on this machine, one process each
    #[arg(short = 'n', long, value_name = "N", value_parser = whole(1, MOST_RANKS))]
    ranks: usize,
    #[command(flatten)]
    machines: Machines,
    /// Go on without a rank, other than 0, that a signal has killed, and start it again: for programs that let it join, such as
    /// unisono train --strategy parameter-server --elastic
    #[arg(long, conflicts_with_all = ["nnodes", "node_rank"])]
    elastic: bool,
    /// Restarts in all before going on without a rank, with --elastic
    #[arg(long, value_name = "N", requires = "elastic", default_value_t = 3)]
    max_restarts: u32,
    /// Time for the other ranks to exit by themselves after one has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = whole(0, LONGEST_S))]
    grace_s: u64,
    /// Command that every rank runs, after --; only rank 0 reads piped standard input
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Several machines; the command is run on each, with the same options but for `--node-rank`.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Several machines")]
struct Machines {
    /// Number of machines, on each of which launch is run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1, MOST_RANKS))]
    nnodes: usize,
    /// Number of this machine, from 0
    #[arg(long, value_name = "K")]
    node_rank: Option<usize>,
    /// Name or address of machine 0, which the others can reach
    #[arg(long, value_name = "HOST")]
    master_addr: Option<String>,
    /// Port there; ranks meet at the next one
    #[arg(long, value_name = "PORT", default_value_t = 29500)]
    master_port: u16,
}

impl Machines {
    /// Where the ranks find each other, and the number of the first one here.
    fn place(&self, ranks: usize) -> Result<Place, Failure> {
        if self.nnodes == 1 {
            return Ok(Place {
                first: 0,
                all: ranks,
                here: ranks,
                meeting: Meeting::Directory(
                    bootstrap_dir().map_err(|error| Failure::Error(error.to_string()))?,
                ),
            });
        }
        let node = self.node_rank.filter(|&node| node < self.nnodes);
        let Some((node, host)) = node.zip(self.master_addr.clone()) else {
            return Err(Failure::BadInput(format!(
                "--nnodes {} needs --node-rank, the number of this machine from 0 to {}, and --master-addr, the name of machine 0",
                self.nnodes,
                self.nnodes - 1
            )));
        };
        let meeting = Meeting::Master { host, port: self.master_port };
        Ok(Place { first: node * ranks, all: self.nnodes * ranks, here: ranks, meeting })
    }
}

/// The same limit as for `--threads`.
const MOST_RANKS: usize = 1024;

/// Runs one process per rank until all have ended. Exits with the exit code of the rank that failed first, or with 75 if ranks
/// stopped on request and none failed.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(ranks @ 2..) = Launcher::detect().ranks {
        // All ranks find the same error.
        let why = format!(
            "launch starts the ranks itself, and cannot run as one of {ranks} ranks: start it without a launcher"
        );
        return Err(if speaks() { Failure::BadInput(why) } else { Failure::SaidElsewhere });
    }
    let place = args.machines.place(args.ranks)?;
    Ok(launch(args, &place).unwrap_or_else(|error| {
        say(&error.to_string());
        ExitCode::FAILURE
    }))
}

fn say(what: &str) {
    eprintln!("launch: {what}");
}

fn launch(args: &Args, place: &Place) -> io::Result<ExitCode> {
    let mut signals = Signals::new(heeded())?;
    family::adopt_orphans()?;
    let restarts = args.elastic.then_some(args.max_restarts);
    let mut ranks = match Ranks::start(&args.command, place, restarts) {
        Ok(ranks) => ranks,
        Err(error) => {
            // The ranks already started wait for the others.
            family::end()?;
            say(&format!("cannot start {}: {error}", args.command[0].display()));
            return Ok(ExitCode::from(BAD_INPUT));
        }
    };
    let watched = ranks.watch(&mut signals, Duration::from_secs(args.grace_s));
    let left = family::end()?;
    watched?;
    if left > 0 {
        say(&format!("killed {left} processes that the ranks left behind"));
    }
    Ok(ExitCode::from(ranks.code()))
}

/// A private directory of this user, in which ranks find each other. Dropping it deletes the directory and its contents.
fn bootstrap_dir() -> io::Result<TempDir> {
    let private = Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().prefix("unisono-launch-").permissions(private).tempdir();
    made.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot create the bootstrap directory: {error}"))
    })
}

/// The signals that are forwarded to ranks. SIGHUP is one of them unless it is ignored, as under `nohup`.
fn heeded() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut heeded = vec![SIGTERM, SIGINT, SIGUSR1];
    if !ignores(&status, SIGHUP) {
        heeded.push(SIGHUP);
    }
    heeded
}

/// Whether a process ignores a signal, according to its `/proc/PID/status`.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| (mask >> (signal - 1)) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bootstrap_directory_is_private_and_goes_away() {
        let (one, other) = (bootstrap_dir().unwrap(), bootstrap_dir().unwrap());
        assert_ne!(one.path(), other.path());
        assert_eq!(fs::metadata(one.path()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(one.path().join("file"), "").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_ignored_is_read() {
        let status =
            "Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert_eq!([1, 2, 13, 15].map(|signal| ignores(status, signal)), [true, false, true, false]);
        assert!(!ignores("", SIGHUP));
    }
}
