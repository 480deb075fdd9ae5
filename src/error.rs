//! What can go wrong while ranks work together.

use std::fmt;
use std::time::Duration;

use unisono_collectives::Rank;

use crate::record::{Doing, POINT_TO_POINT, Seconds};

/// A result whose error is [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An operating error. (A programmer's error, such as a root that does not exist, is a panic with the
/// numbers in it.)
///
/// After an error a communicator is unusable: every later call fails with [`Error::Aborted`]. (Not after
/// [`Error::Unsupported`] and [`Error::OnRank0`], nor after the [`Error::Memory`] of an `alloc`.) What a failed
/// collective leaves in the buffer is undefined.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another rank did not come.
    #[error("{at}: waited {} for rank {other}{}", Seconds(waited.as_secs_f64()), whereabouts(doing.as_deref()))]
    Timeout {
        /// Where this rank was.
        at: Box<Place>,
        /// The rank that did not come.
        other: Rank,
        /// How long this rank waited.
        waited: Duration,
        /// What the other rank does, where that is known: of the ranks of a node.
        doing: Option<Box<Doing>>,
    },

    /// Another rank called something else.
    #[error("{at}: rank {} called {ours}, but rank {other} called {theirs}", at.rank)]
    Mismatch {
        /// Where this rank was.
        at: Box<Place>,
        /// What this rank called.
        ours: String,
        /// The other rank.
        other: Rank,
        /// What the other rank called.
        theirs: String,
    },

    /// Another rank has ended its part of the world, or lost it by a panic.
    #[error(
        "{at}: rank {other} has left the world: it dropped its communicator (if for an error of its own, `unisono::run` tells it)"
    )]
    Left {
        /// Where this rank was.
        at: Box<Place>,
        /// The rank that left.
        other: Rank,
    },

    /// Something failed before, on this rank or another.
    #[error("rank {rank} cannot go on{}: {cause}", because(*rank, *by))]
    Aborted {
        /// This rank.
        rank: Rank,
        /// The rank that failed first.
        by: Rank,
        /// What it said.
        cause: String,
    },

    /// What [`on_rank0`](crate::Communicator::on_rank0) was to do did not succeed. All ranks know it, and the communicator is as good
    /// as before.
    #[error("rank 0 did not succeed in what the others wait for: {label}: {cause}")]
    OnRank0 {
        /// What it was.
        label: String,
        /// What rank 0 said, or the beginning of it.
        cause: String,
    },

    /// An MPI function did not succeed.
    #[error("{call} failed with code {code}: {text}")]
    Mpi {
        /// The function.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// What MPI says of that.
        text: String,
    },

    /// A function of CUDA's driver did not succeed.
    #[cfg(feature = "nccl")]
    #[error("CUDA: {what}: {cause}")]
    Cuda {
        /// What was to be done.
        what: &'static str,
        /// What the driver says.
        cause: cudarc::driver::DriverError,
    },

    /// A GPU did not come to an end.
    #[cfg(feature = "nccl")]
    #[error("rank {rank}: waited {} s for {what}; another rank may have ended, or the GPU hangs", waited.as_secs_f64().round())]
    Overdue {
        /// This rank.
        rank: Rank,
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },

    /// An NCCL function did not succeed.
    #[cfg(feature = "nccl")]
    #[error("{call} failed with code {code}: {text}")]
    Nccl {
        /// The function.
        call: &'static str,
        /// What it returned.
        code: u32,
        /// What NCCL says of that.
        text: String,
    },

    /// A library that is loaded when it is asked for is not there, or is not the one that is needed.
    #[error("{0}")]
    Library(String),

    /// The system gives no memory, or does not let ranks share it.
    #[error("memory of {size_bytes} bytes cannot be had or shared: {cause}{}", crate::system::advice(cause))]
    Memory {
        /// How much was asked for.
        size_bytes: usize,
        /// What the system says.
        cause: std::io::Error,
    },

    /// The program was not launched in a way that can work.
    #[error("{0}")]
    Launch(String),

    /// This build, this world or this vendor does not do that.
    #[error("{0}")]
    Unsupported(String),

    /// A name, in an argument or the environment, that means nothing.
    #[error("{0}")]
    Setting(String),
}

/// As it reads: an error that `main` returns is printed by its `Debug`, and whoever wrote that `main` wants the sentence.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is known of a rank that did not come.
fn whereabouts(doing: Option<&Doing>) -> String {
    match doing {
        None => "; it is late, has ended, or is in another collective".to_owned(),
        Some(doing) => format!(" (process {} on {}), which {doing}", doing.process_id, doing.host),
    }
}

/// Who failed, unless it is the rank that says so.
fn because(rank: Rank, by: Rank) -> String {
    if by == rank { String::new() } else { format!(", because rank {by} failed") }
}

/// Where a rank was when something went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The rank.
    pub rank: Rank,
    /// The operation: "all-reduce"; "send", "receive", "receive-any" or "exchange" of a message from one rank to another.
    pub operation: &'static str,
    /// How many collectives came before this one; of a message, how many came before it the same way between the two ranks, and of
    /// one from any rank, how many were received.
    pub sequence: u64,
    /// The algorithm; "point-to-point" of a message.
    pub algorithm: &'static str,
    /// The phase of the plan.
    pub phase: &'static str,
    /// The step of the phase.
    pub step: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, operation, sequence, algorithm, phase, step } = self;
        if *algorithm == POINT_TO_POINT {
            return write!(f, "rank {rank}, {operation} #{sequence}");
        }
        write!(f, "rank {rank}, {operation} #{sequence} by {algorithm}, step {step}")?;
        if phase != algorithm { write!(f, " of {phase:?}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_reads_as_a_sentence() {
        let error = Error::Launch("two worlds".to_owned());
        assert_eq!(format!("{error:?}"), "two worlds");
    }
}
