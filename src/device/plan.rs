//! A plan for arrays on GPUs: the vendor's calls before the host's part, the host's part, and the vendor's calls after it.

use std::sync::Arc;

use unisono_collectives::execution::CompiledPlan;
use unisono_collectives::{Chunks, VendorCall};

/// What a rank does with each segment of an array.
#[derive(Debug)]
pub(crate) struct Staged {
    /// The number of chunks of a segment.
    pub(super) chunk_count: usize,
    /// Whether any rank calls a vendor, which needs the elements of a segment to be contiguous.
    pub(super) in_whole_segments: bool,
    /// The vendor's call on the GPU before the host's part.
    pub(super) inward: Option<VendorCall>,
    /// The host's part.
    pub(super) host: Option<OnHost>,
    /// The vendor's call after the host's part.
    pub(super) outward: Option<VendorCall>,
}

/// The chunks of a segment that are copied to the host, and the plan that reduces them there.
#[derive(Debug)]
pub(super) struct OnHost {
    pub(super) chunks: Chunks,
    pub(super) compiled: Arc<CompiledPlan>,
}

impl Staged {
    /// Executes the whole plan on the host.
    pub(crate) fn on_host(compiled: Arc<CompiledPlan>) -> Self {
        let chunk_count = compiled.plan().chunk_count();
        let host = OnHost { chunks: Chunks::new(0, chunk_count), compiled };
        Self { chunk_count, in_whole_segments: false, inward: None, host: Some(host), outward: None }
    }

    /// Executes every phase that names a vendor call by the vendor.
    pub(crate) fn with_vendor(compiled: &CompiledPlan) -> Self {
        let plan = compiled.plan();
        let by_vendor = |inward| {
            let mut calls = plan.phases().iter().filter_map(|phase| phase.vendor.as_ref());
            calls.find(|call| call.is_inward() == inward).cloned()
        };
        let host = plan
            .without_vendors()
            .map(|(chunks, rest)| OnHost { chunks, compiled: Arc::new(compiled.part(rest)) });
        let (inward, outward) = (by_vendor(true), by_vendor(false));
        Self { chunk_count: plan.chunk_count(), in_whole_segments: true, inward, host, outward }
    }
}
