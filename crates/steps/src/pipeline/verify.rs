//! The defects and the times of pipeline plans, found by a simulation of all ranks.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Act, Pass, PipelinePlan};
use unisono_collectives::Rank;

impl PipelinePlan {
    /// Returns the defects of this plan, a sentence for each. There are none if all of these conditions hold:
    /// - Every pass is made once, on the rank that holds its stage, after the passes that it needs.
    /// - Every message is received, in the order in which it was sent.
    /// - No rank waits forever.
    /// - No rank keeps the activations of more passes than [`most_kept`](super::PipelineSchedule::most_kept).
    pub fn verify(&self) -> Vec<String> {
        let mut play = Play::of(self, PassCosts::default());
        play.end();
        play.defects
    }

    /// Computes the times of all passes, if every action begins as early as possible.
    ///
    /// # Panics
    /// If the plan is defective and a rank waits forever.
    pub fn timeline(&self, costs: &PassCosts) -> Timeline {
        let play = Play::of(self, *costs);
        let is_done = play.ranks.iter().zip(&self.ranks).all(|(state, acts)| state.done == acts.len());
        assert!(is_done, "a rank waits for ever: {:?}", self.verify());
        Timeline { ranks: play.ranks.into_iter().map(|state| state.spans).collect() }
    }
}

/// The costs of passing a micro-batch through a stage, in any unit of time: the same for all stages.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PassCosts {
    /// A forward pass.
    pub forward: f64,
    /// A backward pass.
    pub backward: f64,
    /// A message from a stage to the next, which ranks overlap with computing.
    pub message: f64,
}

/// The times of a pass on a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The pass.
    pub pass: Pass,
    /// Its start.
    pub begins: f64,
    /// Its end.
    pub ends: f64,
}

/// The times of all passes of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The passes of each rank, in order.
    pub ranks: Vec<Vec<Span>>,
}

impl Timeline {
    /// Returns the end of the last pass.
    pub fn ends(&self) -> f64 {
        self.ranks.iter().flatten().map(|span| span.ends).fold(0.0, f64::max)
    }

    /// Returns the fraction of the time that ranks do not compute, 0 to 1. Without messages, with `s` ranks and `m` micro-batches, it is
    /// (s−1)/(m+s−1). If `v` stages of a rank are interleaved, it is (s−1)/(v·m+s−1).
    pub fn bubble(&self) -> f64 {
        let busy: f64 = self.ranks.iter().flatten().map(|span| span.ends - span.begins).sum();
        1.0 - busy / (self.ends() * self.ranks.len() as f64)
    }
}

/// A simulation of all ranks.
struct Play<'a> {
    plan: &'a PipelinePlan,
    costs: PassCosts,
    ranks: Vec<State>,
    /// The messages in flight and their arrival times, by sender and receiver.
    on_the_way: HashMap<(Rank, Rank), VecDeque<(Pass, f64)>>,
    defects: Vec<String>,
}

#[derive(Default)]
struct State {
    /// The number of completed actions.
    done: usize,
    /// The time at which the last action ended.
    clock: f64,
    spans: Vec<Span>,
    made: HashSet<Pass>,
    received: HashSet<Pass>,
    /// The number of forward passes whose backward pass is pending, now and at most.
    kept: usize,
    most_kept: usize,
}

impl<'a> Play<'a> {
    /// Simulates a plan until no rank can act.
    fn of(plan: &'a PipelinePlan, costs: PassCosts) -> Self {
        let ranks = plan.ranks.iter().map(|_| State::default()).collect();
        let mut play = Self { plan, costs, ranks, on_the_way: HashMap::new(), defects: Vec::new() };
        let mut has_acted = true;
        while std::mem::take(&mut has_acted) {
            for (rank, acts) in plan.ranks.iter().enumerate() {
                while let Some(&act) = acts.get(play.ranks[rank].done)
                    && play.act(rank, act)
                {
                    play.ranks[rank].done += 1;
                    has_acted = true;
                }
            }
        }
        play
    }

    /// Performs an action, unless the rank has to wait. Returns whether it did.
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
                    self.defects
                        .push(format!("rank {rank} sends the result of the {of} before executing it"));
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
            self.defects.push(format!("rank {rank} executes the {pass}, which belongs to another rank"));
            return;
        }
        let forward = pass.is_backward.then_some(Pass { is_backward: false, ..pass });
        for needed in pass.needs(stages).into_iter().chain(forward) {
            if !state.received.contains(&needed) && !state.made.contains(&needed) {
                let defect = format!("rank {rank} executes the {pass} without the result of the {needed}");
                self.defects.push(defect);
            }
        }
        if !state.made.insert(pass) {
            self.defects.push(format!("rank {rank} executes the {pass} twice"));
        }
        state.kept = if pass.is_backward { state.kept.saturating_sub(1) } else { state.kept + 1 };
        state.most_kept = state.most_kept.max(state.kept);
        let begins = state.clock;
        state.clock += if pass.is_backward { self.costs.backward } else { self.costs.forward };
        state.spans.push(Span { pass, begins, ends: state.clock });
    }

    fn end(&mut self) {
        let (plan, ranks) = (self.plan, self.ranks.len());
        for (rank, state) in self.ranks.iter().enumerate() {
            if let Some(&Act::Receive { from, of: pass }) = plan.ranks[rank].get(state.done) {
                self.defects.push(format!(
                    "rank {rank} waits for the result of the {pass} from rank {from}, which does not send it"
                ));
            }
            let most = plan.schedule.most_kept(rank, ranks, plan.micro_batches);
            if state.most_kept > most {
                self.defects.push(format!(
                    "rank {rank} keeps the activations of {} passes at a time, but the schedule allows {most}",
                    state.most_kept
                ));
            }
        }
        let unreceived = self.on_the_way.iter().flat_map(|(&(from, rank), messages)| {
            messages.iter().map(move |(pass, _)| {
                format!("rank {rank} does not receive the result of the {pass} from rank {from}")
            })
        });
        self.defects.extend(unreceived);
        for is_backward in [false, true] {
            for number in 0..plan.stages() * plan.micro_batches {
                let (stage, micro_batch) = (number / plan.micro_batches, number % plan.micro_batches);
                let (rank, pass) = (stage % ranks, Pass { is_backward, stage, micro_batch });
                if !self.ranks[rank].made.contains(&pass) {
                    self.defects.push(format!("rank {rank} does not execute the {pass}"));
                }
            }
        }
    }
}
