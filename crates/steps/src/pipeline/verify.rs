//! The verification of pipeline plans: all ranks are played at once.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::{Act, Pass, PipelineDefect, PipelinePlan};
use unisono_collectives::Rank;

impl PipelinePlan {
    /// Returns the defects of this plan; none if every pass is made once, on the rank that holds its stage, after what it needs; if
    /// every message is received, in the order in which it was sent; if no rank waits for ever; and if none keeps the activations
    /// of more passes than the schedule [says](super::PipelineSchedule::most_kept).
    pub fn verify(&self) -> Vec<PipelineDefect> {
        let mut play = Play::of(self, PassCosts::default());
        play.end();
        play.defects
    }
}

/// The costs of passing a micro-batch through a stage, in any unit of time: the same for all stages.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PassCosts {
    /// A forward pass.
    pub forward: f64,
    /// A backward pass.
    pub backward: f64,
    /// A message from a stage to the next, beside which ranks compute.
    pub message: f64,
}

/// The time of a pass of a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The pass.
    pub pass: Pass,
    /// Its start.
    pub begins: f64,
    /// Its end.
    pub ends: f64,
}

/// All ranks, during their acts.
pub(super) struct Play<'a> {
    plan: &'a PipelinePlan,
    costs: PassCosts,
    pub(super) ranks: Vec<State>,
    /// The messages on their way, and when they arrive, by their ends.
    on_the_way: HashMap<(Rank, Rank), VecDeque<(Pass, f64)>>,
    defects: Vec<PipelineDefect>,
}

#[derive(Default)]
pub(super) struct State {
    /// The number of acts done.
    pub(super) done: usize,
    /// When the last one ended.
    clock: f64,
    /// The times of the passes.
    pub(super) spans: Vec<Span>,
    made: HashSet<Pass>,
    received: HashSet<Pass>,
    /// The forward passes whose backward pass is still to come, now and at most.
    kept: usize,
    most_kept: usize,
}

impl<'a> Play<'a> {
    /// Plays a plan until no rank acts any more.
    pub(super) fn of(plan: &'a PipelinePlan, costs: PassCosts) -> Self {
        let ranks = plan.ranks.iter().map(|_| State::default()).collect();
        let mut play = Self { plan, costs, ranks, on_the_way: HashMap::new(), defects: Vec::new() };
        while play.round() {}
        play
    }

    /// Lets every rank act until it waits. Returns whether any did.
    fn round(&mut self) -> bool {
        let mut acted = false;
        for rank in 0..self.ranks.len() {
            while let Some(&act) = self.plan.ranks[rank].get(self.ranks[rank].done) {
                if !self.act(rank, act) {
                    break;
                }
                self.ranks[rank].done += 1;
                acted = true;
            }
        }
        acted
    }

    /// Does an act, unless the rank has to wait.
    fn act(&mut self, rank: Rank, act: Act) -> bool {
        let state = &mut self.ranks[rank];
        match act {
            Act::Receive { from, of } => {
                let messages = self.on_the_way.entry((from, rank)).or_default();
                // Messages between two ranks do not overtake each other.
                let Some((_, arrival)) = messages.pop_front_if(|(pass, _)| *pass == of) else { return false };
                state.clock = state.clock.max(arrival);
                state.received.insert(of);
            }
            Act::Send { to, of } => {
                if !state.made.contains(&of) {
                    self.defects.push(PipelineDefect::NothingToSend { rank, pass: of });
                }
                self.on_the_way
                    .entry((rank, to))
                    .or_default()
                    .push_back((of, state.clock + self.costs.message));
            }
            Act::Compute(pass) => self.compute(rank, pass),
        }
        true
    }

    fn compute(&mut self, rank: Rank, pass: Pass) {
        let (state, stages) = (&mut self.ranks[rank], self.plan.stages());
        let is_own = pass.stage < stages && pass.stage % self.plan.ranks.len() == rank;
        if !is_own || pass.micro_batch >= self.plan.micro_batches {
            self.defects.push(PipelineDefect::NotOwn { rank, pass });
            return;
        }
        let forward = pass.is_backward.then_some(Pass { is_backward: false, ..pass });
        for needed in pass.needs(stages).into_iter().chain(forward) {
            if !state.received.contains(&needed) && !state.made.contains(&needed) {
                self.defects.push(PipelineDefect::TooEarly { rank, pass, needed });
            }
        }
        if !state.made.insert(pass) {
            self.defects.push(PipelineDefect::Twice { rank, pass });
        }
        state.kept = if pass.is_backward { state.kept.saturating_sub(1) } else { state.kept + 1 };
        state.most_kept = state.most_kept.max(state.kept);
        let begins = state.clock;
        state.clock += if pass.is_backward { self.costs.backward } else { self.costs.forward };
        state.spans.push(Span { pass, begins, ends: state.clock });
    }

    /// Finds what is left at the end.
    fn end(&mut self) {
        let (plan, ranks) = (self.plan, self.ranks.len());
        for (rank, state) in self.ranks.iter().enumerate() {
            if let Some(&Act::Receive { from, of: pass }) = plan.ranks[rank].get(state.done) {
                self.defects.push(PipelineDefect::Deadlock { rank, pass, from });
            }
            let most = plan.schedule.most_kept(rank, ranks, plan.micro_batches);
            if state.most_kept > most {
                self.defects.push(PipelineDefect::Memory { rank, kept: state.most_kept, most });
            }
        }
        let unreceived = self.on_the_way.iter().flat_map(|(&(from, rank), messages)| {
            messages.iter().map(move |&(pass, _)| PipelineDefect::Unreceived { rank, pass, from })
        });
        self.defects.extend(unreceived);
        let missing = self.all().into_iter().filter_map(|pass| {
            let rank = pass.stage % ranks;
            (!self.ranks[rank].made.contains(&pass)).then_some(PipelineDefect::Missing { rank, pass })
        });
        self.defects.extend(missing.collect::<Vec<_>>());
    }

    /// Returns the passes of a step.
    fn all(&self) -> BTreeSet<Pass> {
        let pairs = (0..self.plan.stages())
            .flat_map(|stage| (0..self.plan.micro_batches).map(move |micro_batch| (stage, micro_batch)));
        pairs
            .flat_map(|(stage, micro_batch)| {
                [false, true].map(|is_backward| Pass { is_backward, stage, micro_batch })
            })
            .collect()
    }
}
