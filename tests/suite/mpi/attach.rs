//! A communicator of MPI that cannot be a world.

use unisono::Communicator;
use unisono::mpi::ffi;
use unisono::mpi::raw::AsRaw;

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
