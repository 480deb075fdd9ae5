//! Pipeline parallelism: the order in which the stages of a model process micro-batches.
//!
//! A model is cut into stages of consecutive layers. Each rank holds one stage or, interleaved, several: stage s is on rank s modulo the number of
//! ranks. A [`PipelineSchedule`] is a pure function from the number of ranks and micro-batches to a [`PipelinePlan`]. A plan has a list of [`Act`]s
//! per rank: forward and backward passes, and the messages between them. The same plan is *verified* ([`PipelinePlan::verify`]), *timed*
//! ([`PipelinePlan::timeline`]) and *drawn* ([`PipelinePlan::draw`]).
//!
//! ```
//! use unisono_steps::pipeline::{PassCosts, PipelineSchedule};
//!
//! let plan = PipelineSchedule::OneForwardOneBackward.plan(4, 8)?;
//! assert!(plan.verify().is_empty());
//! let timeline = plan.timeline(&PassCosts { forward: 1.0, backward: 2.0, message: 0.0 });
//! // The bubble of 4 stages and 8 micro-batches: 3 of 11 parts.
//! assert!((timeline.bubble() - 3.0 / 11.0).abs() < 1e-12);
//! # Ok::<(), String>(())
//! ```
//!
//! Its drawing is
//!
//! ```text
#![doc = include_str!("pipeline/golden/1f1b-4-8.txt")]
//! ```

use std::fmt;

use unisono_collectives::Rank;

mod balance;
mod draw;
mod verify;

pub use balance::balance;
pub use verify::{PassCosts, Span, Timeline};

/// The order of forward and backward passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes: every rank keeps the activations of all micro-batches.
    ///
    /// Source: Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019.
    GPipe,
    /// Each rank starts with as many forward passes as there are later stages, then alternates forward and backward passes. The bubble is the same,
    /// and a rank keeps the activations of no more micro-batches than there are stages from it to the last.
    ///
    /// Source: Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019; with a flush, as here,
    /// "Memory-efficient pipeline-parallel DNN training", ICML 2021.
    OneForwardOneBackward,
    /// As `OneForwardOneBackward`, with several stages on each rank. The bubble shrinks by the number of stages per rank, and the number of messages
    /// grows by it. The number of micro-batches should be a multiple of the number of ranks; other numbers leave gaps.
    ///
    /// Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021.
    Interleaved {
        /// The number of stages of a rank, at least 2.
        stages: usize,
    },
}

/// A pass of a micro-batch through a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pass {
    /// Whether it is a backward pass.
    pub is_backward: bool,
    /// The stage, from 0.
    pub stage: usize,
    /// The micro-batch, from 0.
    pub micro_batch: usize,
}

/// An action of a rank. A message carries the result of a pass: the activations of a forward pass, or the gradients of a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Act {
    /// Waits for the result of another rank's pass.
    Receive {
        /// The rank that sends it.
        from: Rank,
        /// The pass that computes it.
        of: Pass,
    },
    /// Computes a pass.
    Compute(Pass),
    /// Sends the result of a pass, without waiting for its receipt.
    Send {
        /// The rank that needs it.
        to: Rank,
        /// The pass that computes it.
        of: Pass,
    },
}

/// The actions of every rank in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelinePlan {
    schedule: PipelineSchedule,
    micro_batches: usize,
    ranks: Vec<Vec<Act>>,
}

impl PipelineSchedule {
    /// Returns the number of stages of each rank.
    pub fn stages_per_rank(self) -> usize {
        match self {
            Self::GPipe | Self::OneForwardOneBackward => 1,
            Self::Interleaved { stages } => stages,
        }
    }

    /// Plans the actions of this many ranks for this many micro-batches.
    ///
    /// # Errors
    /// If there is no rank, no stage of a rank or no micro-batch.
    pub fn plan(self, ranks: usize, micro_batches: usize) -> Result<PipelinePlan, String> {
        let of_rank = self.stages_per_rank();
        if ranks * of_rank * micro_batches == 0 {
            return Err(format!(
                "a pipeline of {ranks} ranks with {of_rank} stages each and {micro_batches} micro-batches: expected at least one of each"
            ));
        }
        let stages = ranks * of_rank;
        let acts = (0..ranks).map(|rank| {
            let passes = self.passes((rank, ranks), micro_batches);
            passes.into_iter().flat_map(|pass| acts(pass, (rank, ranks), stages)).collect()
        });
        Ok(PipelinePlan { schedule: self, micro_batches, ranks: acts.collect() })
    }

    /// Returns the maximum number of passes through stages of this rank whose activations it keeps at a time.
    pub fn most_kept(self, rank: Rank, ranks: usize, micro_batches: usize) -> usize {
        let all = micro_batches * self.stages_per_rank();
        all.min(self.ahead((rank, ranks), micro_batches) + 1)
    }

    fn passes(self, (rank, ranks): (Rank, usize), micro_batches: usize) -> Vec<Pass> {
        let own_stages = self.stages_per_rank();
        let exists = |pass: &Pass| pass.micro_batch < micro_batches;
        // Interleaved stages alternate in complete rounds. Micro-batches beyond the last are left out.
        let micro_batches =
            if own_stages == 1 { micro_batches } else { micro_batches.next_multiple_of(ranks) };
        let all = micro_batches * own_stages;
        // Each stage processes as many micro-batches as there are ranks, then the next stage follows. Backward passes begin at the last stage.
        let pass = |is_backward: bool, number: usize| {
            let (round, within) = (number / (ranks * own_stages), number % (ranks * own_stages));
            let turn = within / ranks;
            let own = if is_backward { own_stages - 1 - turn } else { turn };
            let micro_batch = round * ranks + within % ranks;
            Some(Pass { is_backward, stage: own * ranks + rank, micro_batch }).filter(exists)
        };
        let ahead = self.ahead((rank, ranks), micro_batches);
        let mut passes = Vec::with_capacity(2 * all);
        passes.extend((0..ahead).filter_map(|number| pass(false, number)));
        for number in 0..all {
            if ahead + number < all {
                passes.extend(pass(false, ahead + number));
            }
            passes.extend(pass(true, number));
        }
        passes
    }

    /// Returns the number of forward passes of a rank before the first one that a backward pass follows.
    fn ahead(self, (rank, ranks): (Rank, usize), micro_batches: usize) -> usize {
        let (own_stages, behind) = (self.stages_per_rank(), ranks - 1 - rank);
        let all = micro_batches * own_stages;
        match self {
            Self::GPipe => all,
            Self::OneForwardOneBackward => all.min(behind),
            // The first backward pass belongs to the last stage, after a round of all other stages. The first term covers the way to the later ranks
            // and back.
            Self::Interleaved { .. } => all.min(2 * behind + (own_stages - 1) * ranks),
        }
    }
}

impl fmt::Display for PipelineSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GPipe => f.pad("gpipe"),
            Self::OneForwardOneBackward => f.pad("1f1b"),
            Self::Interleaved { stages } => f.pad(&format!("interleaved:{stages}")),
        }
    }
}

impl std::str::FromStr for PipelineSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let interleaved = |stages: &str| {
            let stages = stages.parse().ok().filter(|stages| (2..=64).contains(stages))?;
            Some(Self::Interleaved { stages })
        };
        let found = match text {
            "gpipe" => Some(Self::GPipe),
            "1f1b" => Some(Self::OneForwardOneBackward),
            _ => text.strip_prefix("interleaved:").and_then(interleaved),
        };
        let known = "gpipe, 1f1b and interleaved:STAGES (of each rank, from 2 to 64)";
        found.ok_or_else(|| format!("no schedule of a pipeline is called `{text}`; there are {known}"))
    }
}

impl PipelinePlan {
    /// Returns the number of micro-batches.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// Returns the number of stages, over all ranks.
    pub fn stages(&self) -> usize {
        self.ranks.len() * self.schedule.stages_per_rank()
    }

    /// Returns the actions of each rank, in order.
    pub fn ranks(&self) -> &[Vec<Act>] {
        &self.ranks
    }
}

impl Pass {
    /// Returns the pass whose result this pass needs. A forward pass needs the previous stage, a backward pass the next one. `None` for a forward
    /// pass at the first stage, and for a backward pass at the last stage, which needs only its own forward pass.
    fn needs(self, stages: usize) -> Option<Self> {
        let stage = match self.is_backward {
            false => self.stage.checked_sub(1),
            true => Some(self.stage + 1).filter(|&stage| stage < stages),
        };
        stage.map(|stage| Self { stage, ..self })
    }

    /// Returns the pass that needs the result of this one.
    fn feeds(self, stages: usize) -> Option<Self> {
        let turned = Self { is_backward: !self.is_backward, ..self };
        turned.needs(stages).map(|pass| Self { is_backward: self.is_backward, ..pass })
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_backward, stage, micro_batch } = self;
        let kind = if *is_backward { "backward" } else { "forward" };
        write!(f, "{kind} pass of micro-batch {micro_batch} through stage {stage}")
    }
}

/// Returns a pass and the messages before and after it.
fn acts(pass: Pass, (rank, ranks): (Rank, usize), stages: usize) -> impl Iterator<Item = Act> {
    let elsewhere = |other: &Pass| other.stage % ranks != rank;
    let receive = pass.needs(stages).filter(elsewhere).map(|of| Act::Receive { from: of.stage % ranks, of });
    let send = pass.feeds(stages).filter(elsewhere).map(|to| Act::Send { to: to.stage % ranks, of: pass });
    receive.into_iter().chain([Act::Compute(pass)]).chain(send)
}

#[cfg(test)]
mod tests;
