//! Phases that a vendor's collective carries out in place of their steps.

use unisono_collectives::{Chunks, VendorCall};

use super::{Run, scaled};
use crate::dtype::DType;
use crate::transport::{Fabric, Failure, VendorPhase};

impl Run<'_> {
    /// Runs a phase as a vendor's collective, among the ranks of its group.
    pub(super) fn by_vendor(&mut self, phase: usize, transport: &mut Fabric) -> Result<(), Failure> {
        let bound = self.bound;
        let phase = &bound.compiled.plan().phases()[phase];
        let call = phase.vendor.as_ref().expect("a phase with a vendor's collective");
        let dtype = bound.format.accumulator.map_or(bound.call.dtype, |_| DType::F32);
        let bytes = |&part: &Chunks| scaled(bound.partition.elements(part), dtype.size_bytes());
        let parts = match call {
            VendorCall::ReduceScatter { parts } | VendorCall::AllGather { parts } => {
                parts.iter().map(bytes).collect()
            }
            VendorCall::Reduce { .. } | VendorCall::Broadcast { .. } => Vec::new(),
        };
        let op = bound.call.op.expect("an operation with phases for vendors reduces");
        let phase = VendorPhase { group: &phase.group, call, parts, dtype, op };
        transport.vendor_phase(&phase, self.held, self.task.deadlines)
    }
}
