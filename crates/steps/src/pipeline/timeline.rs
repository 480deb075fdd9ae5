//! The time of pipeline plans.

use super::PipelinePlan;
use super::verify::{PassCosts, Play, Span};

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

    /// Returns the share of the time that ranks do not compute, 0 to 1: without messages, with `s` ranks and `m`
    /// micro-batches, (s−1)/(m+s−1), and (s−1)/(v·m+s−1) if `v` stages of a rank are interleaved.
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
        let play = Play::of(self, *costs);
        let is_done = play.ranks.iter().zip(&self.ranks).all(|(state, acts)| state.done == acts.len());
        assert!(is_done, "a rank waits for ever: {:?}", self.verify());
        Timeline { ranks: play.ranks.into_iter().map(|state| state.spans).collect() }
    }
}
