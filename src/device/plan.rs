//! A plan for arrays on GPUs: what vendors do before the host, what the host does, and what vendors do after it.

use std::sync::Arc;

use unisono_collectives::execution::CompiledPlan;
use unisono_collectives::{Chunks, VendorCall};

/// What a rank does to each piece of an array.
#[derive(Debug)]
pub(crate) struct Staged {
    /// In how many chunks a piece is cut.
    pub(super) chunk_count: usize,
    /// Whether vendors take part, on whichever rank: they want the elements of a piece in one place.
    pub(super) in_whole_pieces: bool,
    /// By vendors, on the GPU, before the host has the piece.
    pub(super) inward: Option<VendorCall>,
    /// By the host.
    pub(super) host: Option<OnHost>,
    /// By vendors, after it.
    pub(super) outward: Option<VendorCall>,
}

/// The part of a piece that comes down to the host, and what is done to it there.
#[derive(Debug)]
pub(super) struct OnHost {
    pub(super) chunks: Chunks,
    pub(super) compiled: Arc<CompiledPlan>,
}

impl Staged {
    /// All of a plan by the host.
    pub(crate) fn on_host(compiled: Arc<CompiledPlan>) -> Self {
        let chunk_count = compiled.plan().chunk_count();
        let host = OnHost { chunks: Chunks::new(0, chunk_count), compiled };
        Self { chunk_count, in_whole_pieces: false, inward: None, host: Some(host), outward: None }
    }

    /// A plan in whose phases vendors do all that they may.
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
        Self { chunk_count: plan.chunk_count(), in_whole_pieces: true, inward, host, outward }
    }
}
