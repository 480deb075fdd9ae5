//! MPI's collectives, called as a C program calls them.

use std::ffi::{c_int, c_void};

use unisono::mpi::ffi;
use unisono::mpi::raw::AsRaw as _;
use unisono::mpi::topology::SimpleCommunicator;
use unisono::mpi::traits::*;

unsafe extern "C" {
    /// The value of `MPI_IN_PLACE`, which Rust's bindings lack; Unisono compiles it in.
    safe fn unisono_mpi_in_place() -> *const c_void;
}

/// An MPI communicator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vendor {
    comm: ffi::MPI_Comm,
    ranks: usize,
}

fn check(code: c_int) {
    assert_eq!(code, ffi::MPI_SUCCESS as c_int, "the result of an MPI call");
}

fn int(count: usize) -> c_int {
    c_int::try_from(count).expect("a count that MPI supports")
}

impl Vendor {
    pub(crate) fn new(world: &SimpleCommunicator) -> Self {
        Self { comm: world.as_raw(), ranks: world.size() as usize }
    }

    /// Returns the send buffer: a separate input, or `MPI_IN_PLACE`.
    fn sent(input: Option<&[f32]>) -> *const c_void {
        input.map_or_else(|| unisono_mpi_in_place(), |input| input.as_ptr().cast())
    }

    pub(crate) fn all_reduce(self, input: Option<&[f32]>, array: &mut [f32]) {
        let (sent, into, count) = (Self::sent(input), array.as_mut_ptr().cast(), int(array.len()));
        // SAFETY: both arrays have `count` elements, and are valid during the call.
        check(unsafe { ffi::MPI_Allreduce(sent, into, count, ffi::RSMPI_FLOAT, ffi::RSMPI_SUM, self.comm) });
    }

    /// The input is only this rank's part.
    pub(crate) fn all_gather(self, input: Option<&[f32]>, array: &mut [f32]) {
        let (sent, into, count) =
            (Self::sent(input), array.as_mut_ptr().cast(), int(array.len() / self.ranks));
        // SAFETY: the input has `count` elements, and the array as many for each rank.
        check(unsafe {
            let kind = ffi::RSMPI_FLOAT;
            ffi::MPI_Allgather(sent, count, kind, into, count, kind, self.comm)
        });
    }

    pub(crate) fn all_to_all(self, input: Option<&[f32]>, array: &mut [f32]) {
        let (sent, into, count) =
            (Self::sent(input), array.as_mut_ptr().cast(), int(array.len() / self.ranks));
        // SAFETY: both arrays have `count` elements for each rank.
        check(unsafe {
            let kind = ffi::RSMPI_FLOAT;
            ffi::MPI_Alltoall(sent, count, kind, into, count, kind, self.comm)
        });
    }

    /// Gathers in place: on the root, its own part is in the array.
    pub(crate) fn gather(self, rank: usize, array: &mut [f32], root: usize) {
        let part = array.len() / self.ranks;
        let own: *const c_void = array[rank * part..].as_ptr().cast();
        let sent = if rank == root { unisono_mpi_in_place() } else { own };
        let (into, count) = (array.as_mut_ptr().cast(), int(part));
        // SAFETY: the part has `count` elements, and the array as many for each rank; they overlap on no rank that receives.
        check(unsafe {
            let kind = ffi::RSMPI_FLOAT;
            ffi::MPI_Gather(sent, count, kind, into, count, kind, int(root), self.comm)
        });
    }

    pub(crate) fn broadcast(self, array: &mut [f32], root: usize) {
        // SAFETY: the array has this many elements.
        check(unsafe {
            let (into, count) = (array.as_mut_ptr().cast(), int(array.len()));
            ffi::MPI_Bcast(into, count, ffi::RSMPI_FLOAT, int(root), self.comm)
        });
    }

    pub(crate) fn barrier(self) {
        // SAFETY: the communicator is valid.
        check(unsafe { ffi::MPI_Barrier(self.comm) });
    }
}
