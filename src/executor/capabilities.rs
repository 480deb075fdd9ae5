//! The capabilities of a world's links for a call.

use unisono_collectives::execution::Capabilities;

use crate::call::Call;
use crate::kernels::Accumulator;
use crate::method::{Method, Vendor};
use crate::transport::{EAGER_BYTES, FAR_SEGMENT, Fabric};

/// Returns the capabilities for a call. They are identical on all ranks.
pub(super) fn capabilities(transport: &Fabric, ranks: usize, call: &Call, method: Method) -> Capabilities {
    Capabilities {
        is_shared: transport.is_shared_by(ranks),
        can_pipeline: transport.can_pipeline(),
        eager_bytes: EAGER_BYTES,
        segment_bytes: FAR_SEGMENT,
        accumulates: call.op.is_some_and(|op| Accumulator::of(call.dtype, op).is_some()),
        by_vendor: method.in_nodes() == Some(Vendor::Mpi),
    }
}
