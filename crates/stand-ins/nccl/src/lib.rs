//! A stand-in for NCCL (`libnccl.so.2`), for tests on machines without a GPU. Never shipped.
//!
//! It uses the stand-in for the CUDA driver, which the process has loaded as `libcuda.so`. A collective is a host function
//! in the caller's stream, and ranks, threads or processes of one machine, communicate through shared memory.
//! Functions have NCCL's names, and types and numbers are those of NCCL 2.30's `nccl.h`.
//!
//! # As in NCCL
//! - A non-blocking communicator (`blocking = 0`) returns `ncclInProgress` from its creation, its finalisation, and every
//!   collective or group, and completes them a little later. This reveals a caller that uses it, or the stream, before
//!   `ncclCommGetAsyncError` reports success.
//! - A communicator in progress refuses calls (`ncclInvalidArgument`); one that failed returns its failure.
//! - Two ranks on one device are refused, except from 2.30.3 on with `NCCL_MULTI_RANK_GPU_ENABLE=1`.
//! - A mean of floats is the sum of each rank's value times 1 / ranks; a mean of integers is the sum, divided.
//! - The collectives of a communicator are executed in the order of their calls, on any streams.
//! - A rank does not notice that another has aborted, except by the deadline.
//! - An abort waits until the streams have reached the communicator's collectives.
//!
//! # Stricter
//! - A context must be current when a communicator is created.
//! - Ranks whose collectives do not match get `ncclInternalError`, with a message that names both.
//! - A wait for another rank ends at the deadline with `ncclRemoteError`. Creating a communicator has six times that
//!   deadline.
//!
//! # Not imitated
//! `int8` and the 8-bit floats, user-defined operators, point-to-point, `ncclCommInitAll`, `ncclCommSplit` and the like,
//! registered buffers, more than 64 ranks, more than one machine. Additions are made in the order of ranks, half formats in
//! `f32` and rounded once: in NCCL the order depends on the topology, and the bits may differ. A communicator whose creation
//! fails within a group keeps its handle.
//!
//! # Environment
//! - `STAND_IN_NCCL_VERSION`: the version to report (2.30.7).
//! - `STAND_IN_NCCL_DEADLINE_MS`: how long to wait for another rank (10000).
//! - `STAND_IN_NCCL_REFUSED_RANK`: a rank for which no communicator is created (none).
//! - `NCCL_MULTI_RANK_GPU_ENABLE`: as in NCCL.

mod area;
mod collective;
mod communicator;
mod driver;
mod group;
mod id;
mod interface;
mod reduction;
mod results;
mod settings;
