//! Communicators of MPI that are not the world of all launched processes.

use std::process::ExitCode;

use unisono::Communicator;
use unisono::mpi::ffi;
use unisono::mpi::raw::AsRaw;
use unisono::mpi::topology::SimpleCommunicator;
use unisono::mpi::traits::Communicator as _;
use unisono_testing::launch;
use unisono_testing::suite;

/// A communicator between two groups of ranks.
struct TwoGroups(ffi::MPI_Comm);

// SAFETY: it is a handle of MPI.
unsafe impl AsRaw for TwoGroups {
    type Raw = ffi::MPI_Comm;

    fn as_raw(&self) -> Self::Raw {
        self.0
    }
}

/// Ranks 0 and 1, each a group, attach to the communicator between them.
pub(super) fn two_groups_are_refused(world: &impl AsRaw<Raw = ffi::MPI_Comm>, rank: i32) {
    if rank > 1 {
        return;
    }
    let mut comm = world.as_raw();
    // SAFETY: both ranks make the call, each with a communicator of itself, and all handles are valid.
    let code = unsafe {
        ffi::MPI_Intercomm_create(ffi::RSMPI_COMM_SELF, 0, world.as_raw(), 1 - rank, 0, &raw mut comm)
    };
    assert_eq!(code, 0);
    let error = Communicator::attach(&TwoGroups(comm)).unwrap_err().to_string();
    assert!(error.contains("intercommunicator"), "{error}");
}

/// Each rank attaches to the communicator of itself.
pub(super) fn alone() -> ExitCode {
    let universe = unisono::mpi::initialize().expect("MPI is not initialised yet");
    let comm = Communicator::attach(&SimpleCommunicator::self_comm()).unwrap();
    println!("{} of {}", comm.ranks(), universe.world().size());
    drop(comm);
    ExitCode::SUCCESS
}

pub(super) fn is_no_world_of_one() {
    // As started by Slurm.
    let mut command = launch::mpirun(2, "env");
    command.args(["-u", "OMPI_COMM_WORLD_SIZE", "-u", "HYDI_CONTROL_FD", "-u", "MPI_LOCALNRANKS"]);
    command.args(["SLURM_STEP_NUM_TASKS=2", "SLURM_NTASKS=2", &launch::this_program()]);
    suite::play(&mut command, "mpi", "alone");
    let ended = launch::run(command, super::DEADLINE).expect_success();
    assert!(ended.stdout.contains("1 of 2"), "{ended}");
    assert!(!ended.stderr.contains("a world of one"), "{ended}");
}
