//! Errors of calls, which are those of MPI.

use unisono_testing::launch;

use super::{DEADLINE, Installed, is_right, reports};

pub(super) fn invalid_calls(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "errors.c");
    for ranks in [2, 3] {
        let command = installed.accelerate(mpi, ranks, &program, &["no-memory"]);
        let ended = is_right(launch::run(command, DEADLINE), ranks);
        assert!(reports(&ended, "allreduce", "open files that `ulimit -n` permits"), "{ended:?}");
    }
    // MPI executes invalid calls, even if all functions are accelerated.
    let mut command = installed.accelerate(mpi, 2, &program, &["off"]);
    command.env("UNISONO_ACCELERATE", "off");
    is_right(launch::run(command, DEADLINE), 2);
    // Aliases are errors only if MPI checks for them.
    let mut command = installed.accelerate(mpi, 2, &program, &["aliases"]);
    command.envs([("OMPI_MCA_mpi_param_check", "0"), ("MPIR_CVAR_ERROR_CHECKING", "0")]);
    is_right(launch::run(command, DEADLINE), 2);
    // Open MPI itself blocks forever after such a call.
    if mpi == "mpich" {
        let mut command = installed.accelerate(mpi, 2, &program, &["lengths"]);
        command.env_remove("UNISONO_ACCELERATE");
        is_right(launch::run(command, DEADLINE), 2);
    }
}

pub(super) fn mismatch(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "errors.c");
    let ended = is_right(launch::run(installed.accelerate(mpi, 2, &program, &["mismatch"]), DEADLINE), 2);
    assert!(ended.stdout.contains("rank 1 called all-reduce #2 of 2 i32"), "{ended:?}");
}

pub(super) fn fatal_mismatch(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "errors.c");
    let ended = launch::run(installed.accelerate(mpi, 2, &program, &["mismatch", "fatal"]), DEADLINE);
    assert!(!ended.status.success() && !ended.stdout.contains("all right"), "{ended:?}");
}

pub(super) fn fatal(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "fatal.c");
    let run = |call: &str| launch::run(installed.accelerate(mpi, 2, &program, &[call]), DEADLINE);
    // MPI's own message, which mpirun of Open MPI may lose.
    let ended = run("root");
    assert!(ended.stdout.contains("the call is next"), "{ended:?}");
    assert!(!ended.status.success() && !ended.stderr.contains("MPI_Comm_call_errhandler"), "{ended:?}");
    assert!(mpi == "openmpi" || ended.stderr.contains("MPI_Bcast"), "{ended:?}");
    let ended = run("buffer");
    assert!(!ended.status.success() && ended.stderr.contains("unisono: MPI_Allreduce: "), "{ended:?}");
}

pub(super) fn unmatched(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "unmatched.c");
    let file = installed.programs.path().join("decisions");
    for record in ["", file.to_str().unwrap()] {
        let mut command = installed.accelerate(mpi, 2, &program, &[]);
        command.env_remove("UNISONO_ACCELERATE").env("UNISONO_ACCELERATE_RECORD", record);
        is_right(launch::run(command, DEADLINE), 2);
    }
}
