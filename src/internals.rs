//! Items that other crates of the workspace and the benchmarks use, each with the reason. They are not part of the stable API.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::communicator::Communicator;
use crate::error::Result;
use crate::request::Request;

/// Measures parts of a call on device memory, for `gpu-check`.
#[cfg(feature = "nccl")]
mod gpu_parts;

#[cfg(feature = "nccl")]
pub use gpu_parts::{Way, copy_in_segments, nccl_all_reduce};

/// `unisono-bench` reports the algorithm of a barrier, and refuses other algorithms.
pub use crate::codes::OF_BARRIER;
/// `unisono-bench` measures arrays in every kind of memory with the code that measures the constants of a machine.
pub use crate::constants::Array;
/// `unisono-bench` computes the expected means as a collective does.
pub use crate::kernels::divide;
/// `unisono-compress`, `unisono-train` and `unisono-candle` compile their loops over elements for every instruction set. Benchmarks
/// measure kernels alone.
pub use crate::kernels::{Accumulator, Codec, Joint, Kernel, Level, Loop, joint, kernel};
/// Estimates of memory, before a run that a node cannot hold, and reports that name a machine.
pub use crate::system::{AvailableMemory, host};
/// The doctor checks the limits that a world checks when it starts.
pub use crate::system::{
    MemoryLimit, SHARED_FOLDER, SHARED_FOR_A_RANK_BYTES, free_bytes, gpus, least_open_files, open_files,
};
/// The doctor reports the version of UCX, or why it cannot be loaded.
#[cfg(feature = "ucx")]
pub use crate::transport::ucx_version;

/// The ranks of a node and their links, for the doctor, and for estimates of memory.
#[derive(Debug)]
pub struct NodeFacts {
    /// The number of ranks that really share this node, independent of declared nodes.
    pub local_ranks: usize,
    /// The number of cores available to these ranks together.
    pub cores: usize,
    /// Whether the kernel copies between processes of this node; `None` if none share memory.
    pub kernel_copies: Option<bool>,
    /// Whether threads other than the one that created the communicator may use it; otherwise the remedy.
    pub other_threads: Result<()>,
}

impl NodeFacts {
    /// Returns the facts of this rank's node. Waits for the calls in flight.
    pub fn of(comm: &mut Communicator) -> Self {
        let transport = comm.transport_of_engine();
        Self {
            local_ranks: transport.local_ranks(),
            cores: transport.node_cores(),
            kernel_copies: transport.kernel_copies(),
            other_threads: transport.check_other_threads(),
        }
    }
}

/// All-gathers a value of each rank, rank 0's first, such as the findings of the doctor. All ranks call it.
///
/// # Errors
/// As [`Communicator::all_reduce`].
pub fn gather<T: Serialize + DeserializeOwned>(comm: &mut Communicator, own: &T) -> Result<Vec<T>> {
    crate::transport::gather(&mut comm.as_bootstrap("gather"), own)
}

/// Runs `work` as [`Communicator::work`] does, on the communication thread.
///
/// # Errors
/// As [`Communicator::all_reduce_async`].
pub fn work_async<B: Send + 'static>(
    comm: &mut Communicator,
    buffer: B,
    work: impl FnOnce(&mut B) -> Result<()> + Send + 'static,
) -> Result<Request<B>> {
    comm.work_async(buffer, move |engine, _, buffer| {
        let done = work(buffer);
        engine.settle(done)
    })
}

/// The MPI library that this program is linked with, for the doctor.
#[derive(Debug)]
pub struct MpiLibrary {
    /// Its name and version.
    pub version: String,
    /// A harmless difference from the library that the program was compiled for; an error if they are incompatible.
    pub difference: Result<Option<String>>,
    /// A note if the job has several worlds that may have been meant to form one.
    pub alone_in_job: Option<String>,
}

impl MpiLibrary {
    /// Returns the MPI whose header this program was compiled with; `None` if it was built without MPI.
    pub fn compiled_for() -> Option<String> {
        #[cfg(feature = "mpi")]
        return Some(crate::transport::mpi::header_version());
        #[cfg(not(feature = "mpi"))]
        None
    }

    /// Returns the library, for a world of `ranks` ranks; `None` if the program was built without MPI.
    pub fn linked(ranks: usize) -> Option<Self> {
        #[cfg(feature = "mpi")]
        {
            use crate::config::Launcher;
            use crate::transport::mpi::{alone_in_job, library_fits, library_version};

            let alone_in_job = alone_in_job(ranks, Launcher::detect());
            Some(Self { version: library_version(), difference: library_fits(), alone_in_job })
        }
        #[cfg(not(feature = "mpi"))]
        {
            let _ = ranks;
            None
        }
    }
}
