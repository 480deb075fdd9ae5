//! A stand-in for CUDA's driver (`libcuda.so`), for tests on machines without a GPU. Never shipped.
//!
//! It speaks the driver's C interface over host memory, and is as asynchronous as a device: every stream is
//! a queue with a thread of its own, which waits a little while before each operation. So an event that was
//! forgotten, or a buffer that was used again too early, shows as a wrong result.
//!
//! # Where it is stricter than a device
//! - Device addresses are not host addresses: a program that follows one crashes.
//! - New memory holds `0xa5` in every byte, and freed memory `0xdb`; that of `cuMemAllocAsync` gets it in
//!   the order of its stream. Freed memory is not handed out again for a while.
//! - Every access must lie in one live allocation; otherwise `CUDA_ERROR_ILLEGAL_ADDRESS` sticks to the
//!   context. A host function may only be given memory of its own stream's device, or pinned memory.
//! - `cuMemFree` and `cuMemFreeHost` wait for no stream.
//!
//! # What is not imitated
//! Kernels and modules, graphs and capture, memory pools, managed and external memory, memory
//! shared between processes, peer access (copies between devices work), the per-thread default stream,
//! contexts other than the primary ones, priorities (they are taken, and ignored). The default stream is one
//! more stream: it does not wait for others, nor others for it.
//!
//! # Environment
//! - `STAND_IN_DEVICES`: how many devices (1); with 0 there is a driver and no device.
//! - `CUDA_VISIBLE_DEVICES`: which of them, by ordinals, as the driver reads it.
//! - `STAND_IN_SEED`: of the delays (0).
//! - `STAND_IN_DELAY_US`: the mean delay before an operation, in microseconds (25). Most are shorter, and one in
//!   eight is up to nine times as long.
//! - `STAND_IN_GB_PER_S`: copies take this much longer for their size (not at all).
//! - `STAND_IN_MEMORY_MB`: what a device has for one process (4096).

mod context;
mod copy;
mod device;
mod errors;
mod event;
mod handles;
mod memory;
mod settings;
mod stream;
