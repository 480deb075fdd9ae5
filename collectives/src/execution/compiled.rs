//! A rank's plan, with everything that determines its execution.

use std::sync::Arc;

use super::{BLOCK_BYTES, Capabilities, Execution, Moves, Timetable, Traits, eager};
use crate::algorithm::Algorithm;
use crate::direct::Direct;
use crate::operation::Operation;
use crate::plan::Plan;
use crate::schedule::Source;
use crate::world::{Rank, Topology};

/// The plan of one rank for one collective, with everything computed once for calls of all sizes.
#[derive(Debug, Clone)]
pub struct CompiledPlan {
    plan: Plan,
    operation: Operation,
    rank: Rank,
    ranks: usize,
    /// `None` if nothing is known of the plans of other ranks.
    traits: Option<Traits>,
    /// Set if each chunk is reduced by a single rank.
    direct: Option<Arc<Direct>>,
    sends_original: bool,
}

impl CompiledPlan {
    /// A rank's plan, if the algorithm offers the operation.
    pub fn new(algorithm: Algorithm, operation: Operation, topology: &Topology, rank: Rank) -> Option<Self> {
        let plan = algorithm.plan(operation, topology, rank)?;
        let (ranks, all_reduce) = (topology.ranks(), operation == Operation::AllReduce);
        let direct = all_reduce.then(|| Direct::recognise(&plan.flattened(), rank, ranks)).flatten();
        let traits = Some(Traits::of(algorithm, operation, topology));
        let direct = direct.map(Arc::new);
        Some(Self { sends_original: sends_original(&plan), plan, operation, rank, ranks, traits, direct })
    }

    /// A part of this plan, such as the phases that a vendor does not carry out. Since the parts of other ranks may differ, it
    /// executes by plain messages.
    #[must_use]
    pub fn part(&self, plan: Plan) -> Self {
        let sends_original = sends_original(&plan);
        Self { plan, traits: None, direct: None, sends_original, ..*self }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether a step sends the initial contents of the buffer.
    pub fn sends_original(&self) -> bool {
        self.sends_original
    }

    /// How this rank carries out its plan on arrays of `count` elements of `element_size_bytes`. All decisions are made here.
    pub fn execution(
        &self,
        count: usize,
        element_size_bytes: usize,
        capabilities: &Capabilities,
    ) -> Execution {
        let size_bytes = count * element_size_bytes;
        match self.traits.filter(|_| !capabilities.by_vendor) {
            None => Execution::Messages { blocks: 1, by_vendor: capabilities.by_vendor },
            Some(traits) if capabilities.is_shared => self.over_memory(traits, size_bytes, capabilities),
            Some(traits) => self.over_links(traits, size_bytes, capabilities),
        }
    }

    /// If all ranks access each other's memory.
    fn over_memory(&self, traits: Traits, size_bytes: usize, capabilities: &Capabilities) -> Execution {
        let &Capabilities { eager_bytes, accumulates, .. } = capabilities;
        let chunk_bytes = size_bytes / self.plan.chunk_count();
        // A block is then still in the core's cache when a later step uses it.
        let is_cut = traits.sends_single_chunks;
        let blocks = if is_cut { chunk_bytes.div_ceil(BLOCK_BYTES).max(1) } else { 1 };
        if let Some(direct) = &self.direct {
            return Execution::SinglePass { direct: Arc::clone(direct), blocks };
        }
        // A shorter message is copied anyway, and a single pass would synchronise the ranks twice.
        if traits.moves_directly && chunk_bytes > eager_bytes {
            return Execution::Moves(Moves::new(self.operation, self.rank, self.ranks, size_bytes));
        }
        let is_eager = size_bytes <= eager_bytes && !accumulates;
        let halves = is_eager.then(|| eager::halves(&self.plan, self.rank)).flatten();
        halves.map_or(Execution::Messages { blocks, by_vendor: false }, Execution::Eager)
    }

    /// If some ranks do not share memory.
    fn over_links(&self, traits: Traits, size_bytes: usize, capabilities: &Capabilities) -> Execution {
        let &Capabilities { has_lanes, segment_bytes, .. } = capabilities;
        let chunk_bytes = size_bytes / self.plan.chunk_count();
        let far_steps = traits.far_steps.filter(|_| has_lanes);
        let lanes = far_steps.and_then(|far_steps| Timetable::new(chunk_bytes, segment_bytes, far_steps));
        lanes.map_or(Execution::Messages { blocks: 1, by_vendor: false }, Execution::Lanes)
    }
}

fn sends_original(plan: &Plan) -> bool {
    let mut sends =
        plan.phases().iter().flat_map(|phase| phase.schedule.steps()).filter_map(|step| step.send);
    sends.any(|send| send.source == Source::Original)
}
