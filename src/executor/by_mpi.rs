//! Phases that MPI's own collectives carry out in place of their steps.

use unisono_collectives::execution::Execution;
use unisono_collectives::{Phase, VendorCall};

use super::{Run, scaled};
use crate::dtype::DType;
use crate::transport::mpi::InGroup;
use crate::transport::{Failure, Transport};

impl Run<'_> {
    /// What MPI's own collectives do in the place of a phase's steps, if they are to.
    pub(super) fn left_to_mpi<'p>(&self, phase: &'p Phase) -> Option<&'p VendorCall> {
        let by_vendor = matches!(self.task.execution, Execution::Messages { by_vendor: true, .. });
        phase.vendor.as_ref().filter(|_| by_vendor)
    }

    /// A phase by MPI's own collectives, among the ranks of its group.
    pub(super) fn by_mpi(
        &self,
        phase: &Phase,
        call: &VendorCall,
        held: &mut [u8],
        transport: &mut Transport,
    ) -> Result<(), Failure> {
        let dtype = self.format.accumulator.map_or(self.task.call.dtype, |_| DType::F32);
        let parts = match call {
            VendorCall::ReduceScatter { parts } | VendorCall::AllGather { parts } => {
                parts.iter().map(|&part| scaled(self.elements(part), dtype.size_bytes())).collect()
            }
            VendorCall::Reduce { .. } | VendorCall::Broadcast { .. } => Vec::new(),
        };
        let op = self.task.call.op.expect("an operation with phases for vendors reduces");
        transport.by_mpi(&InGroup { group: &phase.group, call, parts, dtype, op }, held, self.task.deadlines)
    }
}
