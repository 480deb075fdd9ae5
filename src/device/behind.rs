//! The wait for work of a GPU, which may wait in NCCL for another rank.

use unisono_collectives::program::Place;

use super::setup::check;
use crate::error::{Error, Result};
use crate::executor::Task;
use crate::gpu::wait_for;
use crate::method::Method;
use crate::nccl;
use crate::transport::{Deadlines, Fabric, Failure, Header};

/// Waits until `is_over`. `last` is the latest call that NCCL carries out.
///
/// # Errors
/// [`Error::Timeout`] and [`Error::Left`] if a rank has not made that call; [`Error::Overdue`] if the GPU is late for another reason; the
/// failure of another rank; the errors of `is_over` and of NCCL.
pub(crate) fn wait_behind_nccl(
    is_over: impl FnMut() -> Result<bool>,
    what: &'static str,
    (nccl, last): (Option<&nccl::Communicator>, Option<&(Header, Method)>),
    deadlines: &Deadlines,
    transport: &Fabric,
) -> Result<()> {
    let status = transport.status();
    let behind = || last.zip(status.first_behind());
    let error = |failure, (header, method): &(Header, Method)| {
        let task = Task { header, method: *method, deadlines };
        task.error(failure, transport, Place { name: "on the GPU", phase: 0, step: 0 })
    };
    let poll = || {
        check(nccl)?;
        let left = behind().and_then(|(call, other)| Some((call, Failure::left(other, status)?)));
        // A rank makes its last call before it leaves, so it may have caught up since the first check.
        left.filter(|_| behind().is_some()).map_or(Ok(()), |(call, failure)| Err(error(failure, call)))
    };
    let waited = wait_for(is_over, what, (deadlines, status), poll);
    // A stream also continues after NCCL has aborted.
    waited.and_then(|()| check(nccl)).map_err(|failed| match (failed, behind()) {
        (Error::Overdue { waited, .. }, Some((call, other))) => {
            error(Failure::Timeout { other, waited }, call)
        }
        (failed, _) => failed,
    })
}
