//! Arrays in GPU memory: reduced by NCCL within nodes where possible, otherwise and between nodes by the host.

mod copies;
mod facts;
#[allow(unsafe_code, reason = "copies that outlive the call that started them")]
mod host_to_device;
mod setup;
#[allow(unsafe_code, reason = "copies that outlive the call that started them")]
mod slot;
mod staged;

pub use copies::Way;
pub(crate) use facts::Inside;
pub use host_to_device::HostToDevice;
pub(crate) use setup::{Gpu, Ranks};
pub(crate) use staged::Pipeline;
