//! The check that all ranks make the same calls, which NCCL lacks, and the wait for a GPU.
//!
//! The [decision](../../../docs/decisions/0007-gpu-calls.md) lists the possible differences and the checks that detect them.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use unisono_collectives::program::Place;

use super::{Engine, Gpu};
use crate::collective::Options;
use crate::error::{Error, Result};
use crate::executor::Task;
use crate::gpu::{cuda, moment, wait_for};
use crate::method::Method;
use crate::transport::{Deadlines, Failure, Header};

/// The largest number of kinds of call that are recorded as agreed on. All ranks clear the record at the same call.
const MAX_KINDS: usize = 4096;

impl Engine {
    /// Checks that all ranks make the same call. The ranks exchange messages at the first call of its kind. For later ones the status
    /// board suffices, since it shows the calls of the other ranks.
    pub(super) fn agree_on_gpu(
        &mut self,
        gpu: &mut Gpu,
        (header, method): (&Header, Method),
        deadlines: &Deadlines,
    ) -> Result<()> {
        let Self { agreement, transport, topology, status, calls, .. } = self;
        let task = Task { header, method, agreement, deadlines };
        task.announce(calls.history(), transport)?;
        if gpu.agreed.len() == MAX_KINDS {
            gpu.agreed.clear();
        }
        let is_new = gpu.agreed.insert(header.kind());
        let node = topology.node(topology.node_of(status.rank()));
        let are_all_on_the_board = node.members().iter().all(|&rank| status.position_of(rank).is_some());
        gpu.last = Some((*header, method));
        if is_new || !are_all_on_the_board { task.agree(transport) } else { Ok(()) }
    }

    /// Waits until the work now queued on a stream is done.
    ///
    /// # Errors
    /// [`Error::Timeout`] and [`Error::Left`] if a rank has not made a call that NCCL carries out; [`Error::Overdue`] if the GPU is late
    /// for another reason; the failure of another rank; the errors of CUDA and NCCL.
    pub(crate) fn synchronize(&self, gpu: &Gpu, stream: &Arc<CudaStream>, options: &Options) -> Result<()> {
        let reached = moment(stream)?;
        let is_over = || reached.try_is_complete().map_err(cuda("work on the GPU"));
        let (what, deadlines) = ("the work queued on the GPU", &self.deadlines(options));
        let behind = || gpu.last.as_ref().zip(self.status.first_behind());
        let error = |failure, (header, method): &(Header, Method)| {
            let task = Task { header, method: *method, agreement: &self.agreement, deadlines };
            task.error(failure, &self.transport, Place { name: "on the GPU", phase: 0, step: 0 })
        };
        let poll = || {
            gpu.check_nccl()?;
            let left = behind().and_then(|(call, other)| Some((call, Failure::left(other, &self.status)?)));
            // A rank makes its last call before it leaves, so it may have caught up since the first check.
            left.filter(|_| behind().is_some()).map_or(Ok(()), |(call, failure)| Err(error(failure, call)))
        };
        let waited = wait_for(is_over, what, (deadlines, &self.status), poll);
        // A stream also continues after NCCL has aborted.
        waited.and_then(|()| gpu.check_nccl()).map_err(|failed| match (failed, behind()) {
            (Error::Overdue { waited, .. }, Some((call, other))) => {
                error(Failure::Timeout { other, waited }, call)
            }
            (failed, _) => failed,
        })
    }
}
