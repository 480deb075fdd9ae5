//! Arrays in the memory of GPUs: NCCL in the nodes where it can, the host between nodes and where it cannot.

use crate::error::{Error, Result};
use crate::status::StatusBoard;
use crate::transport::{Deadlines, Hopeless, Waiting};

mod copies;
mod facts;
pub(crate) mod pieces;
mod plan;
mod setup;
#[allow(unsafe_code, reason = "copies that go on after the call that began them")]
mod slot;
mod staged;

pub use copies::Way;
pub(crate) use facts::Inside;
pub(crate) use plan::Staged;
pub(crate) use setup::{Gpu, Ranks};
pub(crate) use staged::Pipeline;

/// Waits for an event; `look` is asked from time to time whether something is wrong.
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
