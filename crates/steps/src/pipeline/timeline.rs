//! The time of pipeline plans.

use std::collections::HashMap;

use super::{Act, Pass, PipelinePlan};
use unisono_collectives::Rank;

/// The costs of passing a micro-batch through a stage, in any unit of time: the same for all stages.
#[derive(Debug, Clone, Copy, PartialEq)]
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

/// The times of all passes of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The passes of each rank, in order.
    pub ranks: Vec<Vec<Span>>,
}

impl Timeline {
    /// The end of the last pass.
    pub fn ends(&self) -> f64 {
        self.ranks.iter().flatten().map(|span| span.ends).fold(0.0, f64::max)
    }

    /// The share of the time that ranks do not compute, 0 to 1: without messages, with `s` ranks and `m` micro-batches,
    /// (s−1)/(m+s−1), and (s−1)/(v·m+s−1) if `v` stages of a rank are interleaved.
    pub fn bubble(&self) -> f64 {
        let busy: f64 = self.ranks.iter().flatten().map(|span| span.ends - span.begins).sum();
        1.0 - busy / (self.ends() * self.ranks.len() as f64)
    }
}

impl PipelinePlan {
    /// Computes the times of all passes, if every act begins as soon as it can.
    ///
    /// # Panics
    /// If the plan is defective: a rank waits for ever.
    pub fn timeline(&self, costs: &PassCosts) -> Timeline {
        let mut ranks: Vec<Vec<Span>> = vec![Vec::new(); self.ranks.len()];
        let (mut done, mut clocks) = (vec![0; self.ranks.len()], vec![0.0_f64; self.ranks.len()]);
        // When the messages of a pass arrive.
        let mut arrivals: HashMap<(Rank, Pass), f64> = HashMap::new();
        while done.iter().zip(&self.ranks).any(|(&done, acts)| done < acts.len()) {
            let before = done.clone();
            for (rank, acts) in self.ranks.iter().enumerate() {
                while let Some(&act) = acts.get(done[rank]) {
                    let clock = &mut clocks[rank];
                    match act {
                        Act::Receive { of, .. } => {
                            let Some(&arrival) = arrivals.get(&(rank, of)) else { break };
                            *clock = clock.max(arrival);
                        }
                        Act::Send { to, of } => drop(arrivals.insert((to, of), *clock + costs.message)),
                        Act::Compute(pass) => {
                            let begins = *clock;
                            *clock += if pass.is_backward { costs.backward } else { costs.forward };
                            ranks[rank].push(Span { pass, begins, ends: *clock });
                        }
                    }
                    done[rank] += 1;
                }
            }
            assert!(done != before, "a rank waits for ever: {:?}", self.verify());
        }
        Timeline { ranks }
    }
}
