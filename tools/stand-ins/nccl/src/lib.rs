//! A stand-in for NCCL (`libnccl.so.2`), for tests on machines without a GPU. Never shipped.
//!
//! It works over the stand-in for CUDA's driver, which the process has loaded as `libcuda.so`. A collective
//! is a host function in the course of the caller's stream, and ranks, threads or processes of one machine,
//! meet in shared memory. Types and numbers are those of NCCL 2.30's `nccl.h`.
//!
//! # What is as with NCCL
//! - A communicator that does not block (`blocking = 0`) returns `ncclInProgress` from its creation, its
//!   finalising, and from every collective or group, and does the rest a little later: who uses it, or the
//!   stream, before it has asked `ncclCommGetAsyncError`, is found out.
//! - One that is still in progress refuses to be used (`ncclInvalidArgument`); one that failed returns what
//!   it failed with.
//! - Two ranks on one device are refused, but from 2.30.3 on with `NCCL_MULTI_RANK_GPU_ENABLE=1`.
//! - A mean of floats is the sum of what each rank has, times 1 / ranks; of integers, the sum is divided.
//! - The collectives of a communicator are executed in the order of their calls, over whatever streams.
//! - That another rank has aborted is not noticed, but for the deadline.
//!
//! # Where it is stricter
//! - A context must be current when a communicator is created.
//! - Ranks whose collectives do not match get `ncclInternalError`, with a message that names both.
//! - A wait for another rank ends at the deadline: `ncclRemoteError`. Creating a communicator waits six
//!   times as long.
//!
//! # What is not imitated
//! `int8` and the 8-bit floats, operators of the user's, point-to-point, `ncclCommInitAll`, `ncclCommSplit`
//! and its like, registered buffers, more than 64 ranks, more than one machine. Additions are made in the
//! order of ranks, half formats in `f32` and rounded once: with NCCL the order depends on the topology, and
//! the bits may differ. What fails to be created inside of a group keeps its handle.
//!
//! # Environment
//! - `STAND_IN_NCCL_VERSION`: the version that it says it is (2.30.7).
//! - `STAND_IN_NCCL_DEADLINE_MS`: how long it waits for another rank (10000).
//! - `NCCL_MULTI_RANK_GPU_ENABLE`: as NCCL reads it.

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
