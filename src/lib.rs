//! Collective communication for data-parallel training.
//!
//! ```
//! use unisono::ReduceOp;
//!
//! // Four ranks in one process; `unisono::init()` is the same under `mpirun`.
//! let results = unisono::threads(4, |mut comm| -> unisono::Result<Vec<f32>> {
//!     let mut gradients = vec![comm.rank() as f32; 8];
//!     comm.all_reduce(&mut gradients, ReduceOp::Mean)?;
//!     Ok(gradients)
//! });
//! for gradients in results {
//!     assert_eq!(gradients.unwrap(), [1.5; 8]);
//! }
//! ```
//!
//! Start with [`Communicator`]. [`unisono_collectives`] contains the algorithms and verifies their schedules; this crate
//! re-exports its most common types.
//!
//! # Features
//! - `mpi`: ranks under `mpirun`, and messages through MPI (needs an MPI and libclang at build time). Without it, ranks are
//!   threads, or processes that meet by themselves, on one machine or several.
//! - `nccl`: arrays in GPU memory. NCCL and the CUDA driver are loaded on first use; neither is needed at build time.
//! - `cuda`: for programs that link the CUDA driver; it is then not loaded at run time.
//! - `ucx`: messages between nodes over UCX, which is loaded at run time.
//! - `tuning`: files of measured constants; without it, the defaults apply.
//!
//! The data-parallel trainer is the crate `unisono-train`, which `unisono-candle` implements for candle. Its input pipeline is
//! `unisono-data`, and the command line `unisono-cli`.

#![deny(unsafe_code)]

mod call;
mod codes;
mod collective;
mod communicator;
pub mod config;
pub mod constants;
mod control;
#[cfg(feature = "nccl")]
mod device;
mod dtype;
mod error;
mod executor;
#[cfg(feature = "nccl")]
mod gpu;
#[doc(hidden)]
pub mod internals;
mod kernels;
mod memory;
mod method;
#[cfg(feature = "nccl")]
#[allow(unsafe_code, reason = "a C library, on CUDA memory")]
pub mod nccl;
mod observe;
mod record;
mod request;
mod run;
pub mod select;
pub mod size;
pub mod status;
mod sync;
mod system;
pub mod trace;
#[allow(unsafe_code, reason = "memory is shared with other threads and with MPI")]
mod transport;
pub mod tuning;
mod watchdog;
mod while_waiting;
mod world;

pub use call::{Call, Memory, Ran, Why};
pub use collective::Collective;
#[cfg(feature = "nccl")]
pub use communicator::DeviceRequest;
pub use communicator::{CallBuilder, Communicator, Lateness, Planned, Times};
pub use config::OnFailure;
#[cfg(feature = "nccl")]
pub use device::HostToDevice;
pub use dtype::{Buffer, DType, Element};
pub use error::{Error, ErrorCode, Place, Result};
#[cfg(feature = "nccl")]
pub use gpu::DeviceArray;
pub use kernels::{Custom, ReduceOp, copy};
pub use memory::{Registered, Shared, SharedCounters};
pub use method::{Method, Vendor};
pub use request::{Request, wait_all, wait_any};
#[doc(hidden)]
pub use request::{fail_reduction, panic_text};
pub use run::{refuse, run, run_threads};
pub use select::Choice;
pub use transport::Bootstrap;
#[doc(hidden)]
pub use transport::gather_padded;
pub use unisono_collectives::{Algorithm, Operation, Rank, Topology};
pub use while_waiting::{WhileWaiting, while_waiting};
pub use world::{Builder, Unisono, init, threads};

#[cfg(feature = "nccl")]
pub use cudarc;
/// The crate of the half-precision [element types](Element): `half::f16` and `half::bf16`.
pub use half;
#[cfg(feature = "mpi")]
pub use mpi;

/// Returns the name and version of the MPI library that this program is linked with.
#[cfg(feature = "mpi")]
pub fn mpi_library_version() -> String {
    transport::mpi::library_version()
}

/// Compiles the programs in the README, and in the guides for Rust and for training loops.
#[cfg(all(doctest, feature = "mpi"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/rust.md")]
#[doc = include_str!("../docs/own-trainer.md")]
struct Documents;
