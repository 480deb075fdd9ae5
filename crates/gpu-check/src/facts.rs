//! Reports the GPU driver and devices of this machine.

use std::ffi::c_int;

use cudarc::driver::{CudaContext, sys};
use unisono::{Communicator, nccl};

use crate::report::{Figures, Outcome};
use crate::settings::Settings;

pub(crate) fn collect(comm: &mut Communicator, _: &Settings, route: &str) -> Outcome {
    let context = comm.device()?;
    let (major, minor) = context.compute_capability()?;
    let mut driver: c_int = 0;
    // SAFETY: the function may be called at any time, and writes an integer to the address, which is valid during the call.
    unsafe { sys::cuDriverGetVersion(&raw mut driver) }.result()?;
    let figures = Figures::of(comm, route)
        .with("gpu", context.name()?)
        .with("gpus", CudaContext::device_count()?)
        .with("compute_capability", format!("{major}.{minor}"))
        .with("memory_mib", context.total_mem()? >> 20)
        .with("driver_cuda", format!("{}.{}", driver / 1000, driver % 1000 / 10))
        .with("mpi", unisono::mpi_library_version());
    Ok(match nccl::library() {
        Ok(library) => figures
            .with("nccl", library.version().to_string())
            .with("nccl_path", library.path().display().to_string())
            .with("nccl_shares_gpus", library.version().multi_rank_gpu()),
        Err(error) => figures.with("nccl", serde_json::Value::Null).with("nccl_missing", error.to_string()),
    })
}
