//! A rank's plan, with everything that determines its execution.

use super::flow::Flow;
use super::{BLOCK_BYTES, Capabilities, Execution};
use crate::algorithm::Algorithm;
use crate::operation::Operation;
use crate::order;
use crate::plan::Plan;
use crate::program::Program;
use crate::schedule::Source;
use crate::world::{Rank, Topology};

mod lower;

use lower::pipelined;
pub(crate) use lower::pipelined::DEPTH as PIPELINE_DEPTH;

/// The plan of one rank for one collective, with everything computed once for calls of all sizes.
#[derive(Debug, Clone)]
pub struct CompiledPlan {
    plan: Plan,
    operation: Operation,
    rank: Rank,
    ranks: usize,
    /// `None` if the plans of other ranks are unknown.
    flow: Option<Flow>,
}

impl CompiledPlan {
    /// Returns a rank's plan, if the algorithm offers the operation.
    pub fn new(algorithm: Algorithm, operation: Operation, topology: &Topology, rank: Rank) -> Option<Self> {
        Some(Self::of_plan(algorithm.plan(operation, topology, rank)?, algorithm, operation, topology, rank))
    }

    /// Returns a rank's plan for a reduction that is not commutative, if the algorithm offers the operation and keeps the order of
    /// ranks: each result is x0 ∘ x1 ∘ … of the ranks that contribute to it. The plans of all ranks are examined.
    ///
    /// ```
    /// use unisono_collectives::execution::CompiledPlan;
    /// use unisono_collectives::{Algorithm, Operation, Topology};
    ///
    /// let world = Topology::single_node(5);
    /// let keeps = |algorithm| CompiledPlan::in_rank_order(algorithm, Operation::AllReduce, &world, 0).is_some();
    /// assert!(keeps(Algorithm::RecursiveDoubling) && !keeps(Algorithm::Ring));
    /// ```
    pub fn in_rank_order(
        algorithm: Algorithm,
        operation: Operation,
        topology: &Topology,
        rank: Rank,
    ) -> Option<Self> {
        let mut plans = order::in_rank_order(algorithm.plans(operation, topology)?, operation)?;
        Some(Self::of_plan(plans.swap_remove(rank), algorithm, operation, topology, rank))
    }

    fn of_plan(
        plan: Plan,
        algorithm: Algorithm,
        operation: Operation,
        topology: &Topology,
        rank: Rank,
    ) -> Self {
        let flow = Some(Flow::of(algorithm, operation, topology));
        Self { plan, operation, rank, ranks: topology.ranks(), flow }
    }

    /// Returns a part of this plan, such as the phases that a vendor does not carry out. Since the parts of other ranks may differ, it is
    /// executed by plain messages.
    #[must_use]
    pub fn part(&self, plan: Plan) -> Self {
        Self { plan, flow: None, ..*self }
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns whether this rank reduces into a sum that it has reduced into before and not sent since. If elements are rounded when they are
    /// sent, such a sum is accumulated in a wider format. Any other sum may be rounded at every addition, with the same result.
    pub fn accumulates(&self) -> bool {
        let mut is_unsent_sum = vec![false; self.plan.chunk_count()];
        self.plan.phases().iter().flat_map(|phase| phase.schedule.steps()).any(|step| {
            if let Some(send) = step.send.filter(|send| send.source == Source::Current) {
                is_unsent_sum[send.chunks.range()].fill(false);
            }
            let Some(receive) = step.receive else { return false };
            let target = &mut is_unsent_sum[receive.chunks.range()];
            let reduces = receive.combine.reduces();
            let again = reduces && target.contains(&true);
            target.fill(reduces);
            again
        })
    }

    /// Returns the program of this rank for arrays of `count` elements of `element_size_bytes`.
    pub fn program(&self, count: usize, element_size_bytes: usize, capabilities: &Capabilities) -> Program {
        self.lowered((self.rank, &self.plan), self.execution(count, element_size_bytes, capabilities))
    }

    /// Returns the way in which this rank carries out its plan on arrays of `count` elements of `element_size_bytes`. All
    /// decisions are made here.
    pub fn execution(
        &self,
        count: usize,
        element_size_bytes: usize,
        capabilities: &Capabilities,
    ) -> Execution {
        let size_bytes = count * element_size_bytes;
        if capabilities.by_vendor {
            return Execution::ByVendor;
        }
        match &self.flow {
            None => Execution::Messages { blocks: 1 },
            Some(flow) if capabilities.is_shared => self.over_memory(flow, size_bytes, capabilities),
            Some(flow) => self.over_links(flow, size_bytes, capabilities),
        }
    }

    fn over_memory(&self, flow: &Flow, size_bytes: usize, capabilities: &Capabilities) -> Execution {
        let &Capabilities { eager_bytes, accumulates, .. } = capabilities;
        let chunk_bytes = size_bytes / self.plan.chunk_count();
        // A block is then still in the core's cache when a later step uses it, and so is the copy that a single pass lends in place of an
        // array that is not registered. (8 MiB over 2 ranks, AMD EPYC: 575 us in passes over 512 KiB, 736 in one pass; 160 and 143 if
        // registered, but a rank does not know whether the arrays of the others are.)
        let is_cut = flow.sends_single_chunks;
        let blocks = if is_cut { chunk_bytes.div_ceil(BLOCK_BYTES).max(1) } else { 1 };
        // A shorter message is copied in any case, and a single pass would synchronise the ranks twice. (An all-reduce by messages does too.)
        let is_long = chunk_bytes > eager_bytes;
        if flow.owned.is_some() && (is_long || self.operation == Operation::AllReduce) {
            return Execution::SinglePass { blocks };
        }
        if flow.moves_directly && is_long {
            return Execution::Moves { blocks: (size_bytes / self.ranks).div_ceil(BLOCK_BYTES).max(1) };
        }
        let is_short = size_bytes <= eager_bytes && !accumulates;
        if is_short { Execution::Eager } else { Execution::Messages { blocks } }
    }

    fn over_links(&self, flow: &Flow, size_bytes: usize, capabilities: &Capabilities) -> Execution {
        let &Capabilities { can_pipeline, segment_bytes, .. } = capabilities;
        let chunk_bytes = size_bytes / self.plan.chunk_count();
        let far_steps = flow.far_steps.filter(|_| can_pipeline);
        match far_steps.zip(pipelined::blocks(chunk_bytes, segment_bytes)) {
            Some((far_steps, blocks)) => Execution::Pipelined { blocks, far_steps },
            None => Execution::Messages { blocks: 1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_sent_after_every_addition_need_no_accumulator() {
        let accumulates = |algorithm, ranks| {
            let topology = Topology::single_node(ranks);
            let plan = |rank| CompiledPlan::new(algorithm, Operation::AllReduce, &topology, rank).unwrap();
            (0..ranks).map(|rank| plan(rank).accumulates()).collect::<Vec<_>>()
        };
        for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling] {
            assert_eq!(accumulates(algorithm, 4), [false; 4]);
        }
        assert_eq!(accumulates(Algorithm::RoundRobin, 2), [false; 2]);
        assert_eq!(accumulates(Algorithm::RoundRobin, 3), [true; 3]);
        // Rank 0 adds the messages of ranks 1 and 2. Rank 2 adds once, and sends the sum.
        assert_eq!(accumulates(Algorithm::Tree, 4), [true, false, false, false]);
    }
}
