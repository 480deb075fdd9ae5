//! Other processes and tools beside the library.

use std::fs;
use std::path::Path;

use unisono_testing::launch::{self, Ended};

use super::{DEADLINE, Installed, command_of, is_right, reports};

/// The ranks of the upper half have the numbers of those of the lower half, whose files they must not replace.
pub(super) fn metrics(installed: &Installed, mpi: &'static str) {
    let folder = installed.programs.path().join("metrics");
    let mut command = installed.accelerate(mpi, 4, &installed.c(mpi, "halves.c"), &[]);
    command.env("UNISONO_METRICS", &folder);
    is_right(launch::run(command, DEADLINE), 4);
    for rank in 0..2 {
        let metrics = fs::read_to_string(folder.join(format!("unisono-rank-{rank}.prom"))).unwrap();
        let calls = metrics.lines().filter(|line| line.starts_with("unisono_calls_total"));
        let calls: Vec<_> = calls.filter(|line| line.contains("all-reduce")).collect();
        assert!(calls.len() == 1 && calls[0].ends_with(" 10"), "{metrics}");
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
}

pub(super) fn tools(installed: &Installed, mpi: &'static str) {
    let tool = |options: &[&str]| {
        installed.build(&command_of(mpi, "mpicc"), "tool.c", &[&["-shared", "-fPIC"], options].concat())
    };
    let program = installed.c(mpi, "calls.c");
    let run = |tool: &Path, preload: &str| {
        let script = format!(r#"LD_PRELOAD={preload} exec "$@""#);
        let arguments = ["-c", &script, tool.to_str().unwrap(), program.to_str().unwrap()];
        is_right(launch::run(installed.accelerate(mpi, 2, Path::new("sh"), &arguments), DEADLINE), 2)
    };
    let warns = |ended: &Ended, tool: &Path, function_and_place: &str| {
        let warning =
            format!("unisono: `{}` intercepts {function_and_place} libunisono-preload", tool.display());
        let warnings: Vec<_> = ended.stderr.lines().filter(|line| line.contains(" intercepts ")).collect();
        assert!(warnings.len() == 1 && warnings[0].starts_with(&warning), "{ended:?}");
    };
    let of_start = tool(&[]);
    let ended = run(&of_start, "$0:$LD_PRELOAD");
    warns(&ended, &of_start, "MPI_Init before");
    assert!(!ended.stderr.contains("  unisono\n"), "{ended:?}");
    let of_collective = tool(&["-DCOLLECTIVE"]);
    let ended = run(&of_collective, "$0:$LD_PRELOAD");
    warns(&ended, &of_collective, "MPI_Allreduce before");
    assert!(!reports(&ended, "allreduce", "  unisono") && reports(&ended, "bcast", "  unisono"), "{ended:?}");
    for (tool, function_and_place) in [(of_start, "MPI_Init after"), (of_collective, "MPI_Allreduce after")] {
        let ended = run(&tool, "$LD_PRELOAD:$0");
        warns(&ended, &tool, function_and_place);
        assert!(reports(&ended, "allreduce", "  unisono"), "{ended:?}");
    }
}
