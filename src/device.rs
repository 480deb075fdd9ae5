//! Arrays in GPU memory. NCCL reduces them within nodes where possible. Otherwise, and between nodes, the host does.

mod behind;
mod copies;
mod facts;
#[allow(unsafe_code, reason = "copies that outlive the call that started them")]
mod host_to_device;
mod pinned;
mod setup;
#[allow(unsafe_code, reason = "copies that outlive the call that started them")]
mod slot;
mod staged;

pub(crate) use behind::wait_behind_nccl;
pub use copies::Way;
pub(crate) use facts::Inside;
pub use host_to_device::HostToDevice;
pub(crate) use setup::{Gpu, Ranks};
pub(crate) use staged::Pipeline;
