//! The check that all ranks make the same calls, which NCCL lacks, and the wait for a GPU.
//!
//! The [decision](../../../docs/decisions/0007-gpu-calls.md) lists the possible differences and the checks that detect them.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::{Engine, Gpu};
use crate::collective::Options;
use crate::device::wait_behind_nccl;
use crate::error::Result;
use crate::executor::Task;
use crate::gpu::{cuda, moment};
use crate::method::Method;
use crate::transport::{Deadlines, Header};

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
    /// As [`wait_behind_nccl`].
    pub(crate) fn synchronize(&self, gpu: &Gpu, stream: &Arc<CudaStream>, options: &Options) -> Result<()> {
        let reached = moment(stream)?;
        let is_over = || reached.try_is_complete().map_err(cuda("work on the GPU"));
        let (before, deadlines) = ((gpu.nccl.as_ref(), gpu.last.as_ref()), &self.deadlines(options));
        let waits = (&self.agreement, deadlines);
        wait_behind_nccl(is_over, "the work queued on the GPU", before, waits, &self.transport)
    }
}
