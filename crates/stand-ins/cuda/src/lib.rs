//! A stand-in for the CUDA driver (`libcuda.so`), for tests on machines without a GPU. Never shipped.
//!
//! It implements the driver's C interface, by functions of the same names, on host memory, and is as asynchronous as a device:
//! every stream is a queue with a thread of its own, which waits for a short random time before each operation. So a missing
//! event, or a buffer that is reused too early, causes a wrong result.
//!
//! # Stricter than a device
//! - Device addresses are not host addresses: a program that dereferences one crashes.
//! - Every byte of new memory is `0xa5`, and of freed memory `0xdb`; for `cuMemAllocAsync` in stream order. Freed memory is
//!   not reused for a while.
//! - Every access must lie in one live allocation; otherwise `CUDA_ERROR_ILLEGAL_ADDRESS` sticks to the context. A host
//!   function may access only memory of its stream's device, or pinned memory.
//! - `cuMemFree` and `cuMemFreeHost` wait for no stream.
//!
//! # Not imitated
//! Kernels and modules, graphs and capture, memory pools (but for the release threshold of the default ones, which has no effect),
//! managed and external memory, memory shared between processes, peer access (copies between devices work), contexts other than the
//! primary ones, priorities. The default streams are ordinary streams: they do not synchronise with others.
//!
//! # Environment
//! - `STAND_IN_DEVICES`: the number of devices (1); with 0 there is a driver without devices.
//! - `CUDA_VISIBLE_DEVICES`: the visible devices, by ordinal, as the driver parses it.
//! - `STAND_IN_SEED`: the seed of the delays (0).
//! - `STAND_IN_DELAY_US`: the mean delay before an operation, in microseconds (25). Most are shorter, and one in eight is up
//!   to nine times as long.
//! - `STAND_IN_GB_PER_S`: the rate by which the size of a copy prolongs it (unlimited).
//! - `STAND_IN_MEMORY_MB`: the memory of a device for one process (4096).

mod context;
mod copy;
mod device;
mod errors;
mod event;
mod handles;
mod memory;
mod settings;
mod stream;
