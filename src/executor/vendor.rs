//! Phases that a vendor's collectives carry out in place of their steps.

use unisono_collectives::execution::Execution;
use unisono_collectives::{Phase, VendorCall};

use super::{Run, scaled};
use crate::dtype::DType;
use crate::transport::{Failure, Transport, VendorPhase};

impl Run<'_> {
    /// The vendor's collective that replaces a phase's steps, if there is one.
    pub(super) fn left_to_vendor<'p>(&self, phase: &'p Phase) -> Option<&'p VendorCall> {
        let by_vendor = matches!(self.task.execution, Execution::Messages { by_vendor: true, .. });
        phase.vendor.as_ref().filter(|_| by_vendor)
    }

    /// Runs a phase as a vendor's collective, among the ranks of its group.
    pub(super) fn by_vendor(
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
        let phase = VendorPhase { group: &phase.group, call, parts, dtype, op };
        transport.vendor_phase(&phase, held, self.task.deadlines)
    }
}
