//! Arrays in GPU memory: reduced by NCCL within nodes where possible, otherwise and between nodes by the host.

use crate::error::{Error, Result};
use crate::status::StatusBoard;
use crate::transport::{Deadlines, Hopeless, Waiting};

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

/// Polls until `is_over`, with the deadlines of a call; calls `look` from time to time to detect errors.
pub(crate) fn wait_for(
    mut is_over: impl FnMut() -> Result<bool>,
    what: &'static str,
    (deadlines, status): (&Deadlines, &StatusBoard),
    mut look: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut waiting = Waiting::new(0, deadlines, status);
    while !is_over()? {
        match waiting.pause() {
            Ok(false) => {}
            Ok(true) => look()?,
            Err(Hopeless::Overdue(waited)) => {
                return Err(Error::Overdue { rank: status.rank(), what, waited });
            }
            Err(Hopeless::Failed(error)) => return Err(error),
        }
    }
    Ok(())
}
