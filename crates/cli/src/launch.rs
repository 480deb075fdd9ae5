//! `unisono launch`: starts the ranks of a world as processes without MPI: on this machine, on other hosts over ssh, or this machine's part of the
//! ranks.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, ArgGroup, Args as ClapArgs};
use signal_hook::iterator::Signals;
use unisono::config::{Launcher, SECRET, exported};

use super::family;
use super::values::{LONGEST_S, MOST_RANKS, whole};
use super::{Failure, is_reporter};

mod directory;
mod forward;
mod hosts;
mod ranks;

use directory::Directory;
use forward::{Output, Prefix};
use hosts::{Host, Hosts, Part};
use ranks::{Machine, Meeting, Place, Ranks};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Number of ranks, one process each, on this machine or on each host
    #[arg(short = 'n', long, value_name = "N", value_parser = whole(1, MOST_RANKS))]
    ranks: usize,
    /// Prefix each line of output with the rank [default: on a terminal, the lines of ranks other than 0]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    #[arg(require_equals = true, action = ArgAction::Set)]
    prefix: Option<bool>,
    /// Also append the output of each rank to DIR/rank-N.log
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Continue without a rank other than 0 that is killed by a signal, and restart it; the program must let it rejoin, as unisono train --strategy
    /// parameter-server --elastic does
    #[arg(long, conflicts_with_all = ["nnodes", "node_rank", "hosts"])]
    elastic: bool,
    /// Maximum number of restarts in total, with --elastic; afterwards, the other ranks continue without a killed rank
    #[arg(long, value_name = "N", requires = "elastic", default_value_t = 3)]
    max_restarts: u32,
    /// Time in seconds for the other ranks to exit after one has failed, before they are terminated
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = whole(0, LONGEST_S))]
    grace_s: u64,
    /// Command of every rank, after --; rank 0 receives standard input unless it is a terminal, and no rank does with --hosts
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
    // Last, since its heading in the help applies to all options that follow it.
    #[command(flatten)]
    machines: Machines,
}

/// Several machines: ssh starts the ranks, or the command is run on each, with the same options but for `--node-rank`.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Several machines", group = ArgGroup::new("several").args(["nnodes", "hosts"]))]
struct Machines {
    /// Hosts on which to start ranks over ssh, comma-separated, in the current directory; this command must be installed there at the same path.
    /// SLOTS overrides the number of ranks on a host
    #[arg(long, value_name = "HOST[:SLOTS],…", value_delimiter = ',', value_parser = hosts::host)]
    #[arg(conflicts_with = "node_rank")]
    hosts: Vec<Host>,
    /// Environment variables to export to the hosts, comma-separated, in addition to UNISONO_…
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', requires = "hosts")]
    export: Vec<String>,
    /// Number of machines; launch must be run on each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1, MOST_RANKS))]
    nnodes: usize,
    /// Number of this machine, from 0
    #[arg(long, value_name = "K", requires = "nnodes")]
    node_rank: Option<usize>,
    /// Host name or address of machine 0, reachable from the others [default: the first of --hosts]
    #[arg(long, value_name = "HOST", requires = "several")]
    master_addr: Option<String>,
    /// Port on machine 0, as for torchrun; ranks connect to the port after it
    #[arg(long, value_name = "PORT", requires = "several", default_value_t = 29500)]
    #[arg(value_parser = whole(1, u16::MAX - 1))]
    master_port: u16,
}

impl Args {
    /// Returns the ranks of this machine. They connect through `directory` if it is the only machine.
    fn machine(&self, output: Output, directory: Option<&Directory>) -> Result<Machine, Failure> {
        let Machines { nnodes, node_rank, ref master_addr, master_port: port, .. } = self.machines;
        let last = nnodes - 1;
        if let Some(node) = node_rank.filter(|&node| node > last) {
            let why = format!("--node-rank must be from 0 to {last} with --nnodes {nnodes}, got `{node}`");
            return Err(Failure::BadInput(why));
        }
        let (node, meeting) = match (directory, node_rank, master_addr) {
            (Some(directory), ..) => (0, Meeting::Directory(directory.path().to_owned())),
            (None, Some(node), Some(host)) => (node, Meeting::Master { host: host.clone(), port }),
            _ => {
                return Err(Failure::BadInput(format!(
                    "--nnodes {nnodes} needs --node-rank, the number of this machine from 0 to {last}, and --master-addr, the name of machine 0"
                )));
            }
        };
        Ok(Machine {
            words: self.command.clone(),
            environment: Vec::new(),
            first: node * self.ranks,
            here: self.ranks,
            all: nnodes * self.ranks,
            meeting,
            output,
            reads: true,
        })
    }

    fn hosts(&self, output: &Output) -> Result<Hosts, Failure> {
        let Machines { hosts, export, master_addr, master_port, .. } = &self.machines;
        let unset = |name| format!("--export {name}: the environment variable is not set, or is not Unicode");
        let mut environment = exported(export).map_err(|name| Failure::BadInput(unset(name)))?;
        if environment.iter().all(|(name, _)| name != SECRET) {
            environment.push((SECRET.to_owned(), secret()?));
        }
        let directory = std::env::current_dir()?;
        let first_host = hosts[0].name.rsplit('@').next().unwrap_or_default();
        let host = master_addr.clone().unwrap_or_else(|| first_host.to_owned());
        let meeting = Meeting::Master { host, port: *master_port };
        let slots = |host: &Host| host.slots.unwrap_or(self.ranks);
        let (all, mut first, mut parts) = (hosts.iter().map(slots).sum(), 0, Vec::new());
        for host in hosts {
            let machine = Machine {
                words: self.command.clone(),
                environment: environment.clone(),
                first,
                here: slots(host),
                all,
                meeting: meeting.clone(),
                output: output.clone(),
                reads: false,
            };
            first += machine.here;
            let part = Part { machine, directory: directory.clone(), grace_s: self.grace_s };
            parts.push((host.name.clone(), part));
        }
        Ok(parts)
    }
}

fn secret() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.map(|byte| format!("{byte:02x}")).concat())
}

/// Runs one process per rank until all have ended. Exits with the exit code of the first rank that failed, or with 75 if ranks stopped on request and
/// none failed.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    // With --node-rank, another launcher has started this command once per machine.
    if let (Some(ranks @ 2..), None) = (Launcher::detect().ranks, args.machines.node_rank) {
        // All ranks find the same error.
        let why = format!(
            "launch starts the ranks itself, and cannot run as one of {ranks} ranks: start it without a launcher"
        );
        return Err(Failure::refusal(is_reporter(), why));
    }
    let by_default = if io::stdout().is_terminal() { Prefix::Others } else { Prefix::None };
    let prefix = args.prefix.map_or(by_default, |all| if all { Prefix::All } else { Prefix::None });
    let output = Output { prefix, logs: args.logs.as_ref().map(std::path::absolute).transpose()? };
    let grace = Duration::from_secs(args.grace_s);
    if !args.machines.hosts.is_empty() {
        let hosts = args.hosts(&output)?;
        return Ok(code_of(launch(&hosts, None, grace)));
    }
    let restarts = args.elastic.then_some(args.max_restarts);
    let directory = (args.machines.nnodes == 1).then(Directory::new).transpose()?;
    let machine = args.machine(output, directory.as_ref())?;
    machine.prepare().map_err(|error| Failure::BadInput(error.to_string()))?;
    Ok(code_of(launch(&machine, restarts, grace)))
}

/// Runs this host's part of a launch from another host.
pub(super) fn run_part() -> ExitCode {
    code_of(hosts::run())
}

fn code_of(ended: io::Result<u8>) -> ExitCode {
    ended.map_or_else(
        |error| {
            print_message(&error.to_string());
            ExitCode::FAILURE
        },
        ExitCode::from,
    )
}

fn print_message(what: &str) {
    eprintln!("launch: {what}");
}

fn launch(place: &dyn Place, restarts: Option<u32>, grace: Duration) -> io::Result<u8> {
    let mut signals = Signals::new(family::heeded())?;
    watch(place, restarts, &mut || signals.pending().collect(), grace)
}

/// Runs the ranks until they and all their descendants have ended. `signals` returns the signals that have arrived.
fn watch(
    place: &dyn Place,
    restarts: Option<u32>,
    signals: &mut dyn FnMut() -> Vec<i32>,
    grace: Duration,
) -> io::Result<u8> {
    family::adopt_orphans()?;
    let mut ranks = match Ranks::start(place, restarts) {
        Ok(ranks) => ranks,
        Err(error) => {
            // The started ranks would wait for the others.
            family::end()?;
            print_message(&format!("cannot run `{}`: {error}", place.program()));
            return Ok(family::code_of_unstarted(&error));
        }
    };
    let watched = ranks.watch(signals, grace);
    let left = family::end()?;
    let code = ranks.end();
    watched?;
    if left > 0 {
        print_message(&format!("killed {left} processes that the {} left behind", place.what()));
    }
    Ok(code)
}
