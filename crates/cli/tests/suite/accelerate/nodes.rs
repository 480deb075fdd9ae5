//! Ranks on several nodes, which `scripts/two-nodes` emulates on this machine.

use std::path::Path;
use std::process::Command;

use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::Test;

use super::{ABI, ALL, DEADLINE, Installed, MPIS, choice, is_right, reports};
use crate::{TWO_NODES, no_two_nodes};

pub(super) fn tests() -> Vec<Test> {
    type Run = fn(&Installed, &'static str);
    // Whether the quick suite includes the test over Open MPI.
    let tests: [(&str, Run, bool); 5] = [
        ("every_call_gives_what_mpi_gives_on_two_nodes", every_call, true),
        ("every_call_gives_what_mpi_gives_on_other_nodes", on_other_nodes, false),
        ("pending_calls_progress_during_a_wait_between_nodes", progress, false),
        ("communicators_over_nodes_can_be_left_to_mpi", left_to_mpi, true),
        ("nodes_that_cannot_connect_are_left_to_mpi", cut_off, true),
    ];
    let of_mpi = |mpi: &'static str| {
        tests.into_iter().map(move |(name, run, is_quick)| {
            let run = move || run(&Installed::new(), mpi);
            let test = Test::new(format!("{name}_over_{mpi}"), run).unless(no_two_nodes);
            if is_quick && mpi == "openmpi" { test } else { test.deep() }
        })
    };
    let clock = || clock(&Installed::new(), "openmpi");
    let clock = Test::new("nodes_choose_by_one_clock_over_openmpi", clock).unless(no_clocks);
    MPIS.into_iter().filter(|&mpi| mpi != ABI).flat_map(of_mpi).chain([clock]).collect()
}

/// Returns the reason why nodes cannot have separate clocks here, if they cannot.
fn no_clocks() -> Option<String> {
    let checked = Command::new("unshare").args(["--map-root-user", "--time", "--fork", "true"]).output();
    match checked {
        Ok(output) if output.status.success() => no_two_nodes(),
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

/// Returns the command `scripts/two-nodes --ranks NODES unisono accelerate --report PROGRAM`, with everything accelerated.
fn accelerate(installed: &Installed, mpi: &str, nodes: &str, program: &Path, arguments: &[&str]) -> Command {
    let mut launcher = Command::new(TWO_NODES);
    launcher.args(["--ranks", nodes, "--mpirun", &format!("mpirun.{mpi}"), "--"]);
    // Otherwise Unisono detects a single machine, and uses shared memory.
    launcher.envs([("UNISONO_NODES", nodes), ("UNISONO_NETWORK", "tcp")]);
    // Ranks of a node share a core, which Open MPI does not detect.
    launcher.env("OMPI_MCA_mpi_yield_when_idle", "1");
    installed.accelerate_by(mpi, launcher, program, arguments)
}

fn run(command: Command, nodes: &str) -> Ended {
    let ranks = nodes.split(',').map(|ranks| ranks.parse::<usize>().unwrap()).sum();
    is_right(launch::run(command, DEADLINE), ranks)
}

fn all_calls(installed: &Installed, mpi: &'static str, nodes: &str) {
    let ended = run(accelerate(installed, mpi, nodes, &installed.c(mpi, "calls.c"), &[]), nodes);
    for function in ALL.split(',') {
        assert!(reports(&ended, function, "  unisono"), "{function} is not Unisono's: {ended:?}");
    }
}

fn every_call(installed: &Installed, mpi: &'static str) {
    all_calls(installed, mpi, "2,2");
}

fn on_other_nodes(installed: &Installed, mpi: &'static str) {
    for nodes in ["1,1", "3,1", "1,1,1"] {
        all_calls(installed, mpi, nodes);
    }
}

fn progress(installed: &Installed, mpi: &'static str) {
    let arguments = if mpi == "openmpi" { &["messages"][..] } else { &[] };
    for nodes in ["1,1", "2,1"] {
        run(accelerate(installed, mpi, nodes, &installed.c(mpi, "progress.c"), arguments), nodes);
    }
}

/// The clock of the second node is ahead. Without a comparison of clocks, the time of a call would be the time of the second node's rank, which waits
/// for the other rank.
fn clock(installed: &Installed, mpi: &'static str) {
    const AHEAD: &str =
        r#"case $(hostname) in node2) exec unshare --time --monotonic 1000 --fork "$0" ;; esac; exec "$0""#;
    let program = installed.c(mpi, "late.c");
    let mut command =
        accelerate(installed, mpi, "1,1", Path::new("sh"), &["-c", AHEAD, program.to_str().unwrap()]);
    command.env_remove("UNISONO_ACCELERATE");
    let ended = run(command, "1,1");
    let rows = choice::rows(&ended);
    assert!(rows.len() == 1 && (0.1..2500.0).contains(&rows[0].most_us), "{ended:?}");
}

fn left_to_mpi(installed: &Installed, mpi: &'static str) {
    let mut command = accelerate(installed, mpi, "1,1", &installed.c(mpi, "late.c"), &[]);
    command.env("UNISONO_ACCELERATE", "-nodes");
    let ended = run(command, "1,1");
    assert!(reports(&ended, "allreduce", "MPI: UNISONO_ACCELERATE leaves it to MPI"), "{ended:?}");
}

/// The only interface that ranks may use is unreachable. They detect this once, and not for each communicator.
fn cut_off(installed: &Installed, mpi: &'static str) {
    let mut command = accelerate(installed, mpi, "1,1", &installed.c(mpi, "communicators.c"), &[]);
    command.env("UNISONO_INTERFACE", "lo");
    let ended = run(command, "1,1");
    let row = ended.stderr.lines().find(|line| line.contains("MPI: Unisono did not start: "));
    assert!(row.is_some_and(|row| row.contains("rank 0 and rank 1 cannot connect")), "{ended:?}");
    assert_eq!(ended.stderr.matches("MPI carries out calls of 2 ranks on 2 nodes: ").count(), 1, "{ended:?}");
}
