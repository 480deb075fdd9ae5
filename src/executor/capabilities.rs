//! What the links of a world allow, and a call on them.

use unisono_collectives::execution::Capabilities;

use crate::call::Call;
use crate::kernels::Accumulator;
use crate::method::{Method, Vendor};
use crate::transport::{EAGER_BYTES, Transport};

/// What all ranks know alike of how a call may be carried out.
pub(crate) fn capabilities(transport: &Transport, ranks: usize, call: &Call, method: Method) -> Capabilities {
    let (has_lanes, segment_bytes) = lanes(transport, ranks);
    Capabilities {
        is_shared: transport.is_shared_by(ranks),
        has_lanes,
        eager_bytes: EAGER_BYTES,
        segment_bytes,
        accumulates: call.op.is_some_and(|op| Accumulator::of(call.dtype, op).is_some()),
        by_vendor: cfg!(feature = "mpi") && method.in_nodes() == Some(Vendor::Mpi),
    }
}

#[cfg(feature = "mpi")]
fn lanes(transport: &Transport, ranks: usize) -> (bool, usize) {
    (transport.has_lanes(ranks), crate::transport::mpi::FAR_SEGMENT)
}

#[cfg(not(feature = "mpi"))]
fn lanes(_: &Transport, _: usize) -> (bool, usize) {
    (false, 1)
}
