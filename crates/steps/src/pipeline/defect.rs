//! Defects of pipeline plans.

use std::fmt;

use super::Pass;
use unisono_collectives::Rank;

/// A defect of a pipeline plan. [`PipelinePlan::verify`](super::PipelinePlan::verify) returns those that it finds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each defect's sentence names its fields")]
pub enum PipelineDefect {
    /// A pass is made more than once.
    #[error("rank {rank} makes the {pass} twice")]
    Twice { rank: Rank, pass: Pass },

    /// A rank makes a pass through a stage that it does not hold, or that there is not.
    #[error("rank {rank} makes the {pass}, which is not its own")]
    NotOwn { rank: Rank, pass: Pass },

    /// A pass is never made.
    #[error("rank {rank} does not make the {pass}")]
    Missing { rank: Rank, pass: Pass },

    /// A pass begins before what it needs is there.
    #[error("rank {rank} makes the {pass} without the result of the {needed}")]
    TooEarly { rank: Rank, pass: Pass, needed: Pass },

    /// A rank sends what it has not computed.
    #[error("rank {rank} sends the result of the {pass} before it has made it")]
    NothingToSend { rank: Rank, pass: Pass },

    /// A rank waits for a message, and the other sends another, or no more.
    #[error("rank {rank} waits for the result of the {pass} from rank {from}, and does not get it")]
    Deadlock { rank: Rank, pass: Pass, from: Rank },

    /// A message is never received.
    #[error("rank {rank} does not receive the result of the {pass} from rank {from}")]
    Unreceived { rank: Rank, pass: Pass, from: Rank },

    /// A rank keeps more activations than the schedule says.
    #[error("rank {rank} keeps the activations of {kept} passes at a time, and the schedule says {most}")]
    Memory { rank: Rank, kept: usize, most: usize },
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_backward, stage, micro_batch } = self;
        let kind = if *is_backward { "backward" } else { "forward" };
        write!(f, "{kind} pass of micro-batch {micro_batch} through stage {stage}")
    }
}
