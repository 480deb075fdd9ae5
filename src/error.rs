//! What can go wrong while ranks work together.

use std::fmt;
use std::time::Duration;

use unisono_collectives::Rank;

use crate::record::{Doing, POINT_TO_POINT, Seconds};

mod code;

pub use code::ErrorCode;

/// A result whose error is [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An operating error. (A programmer's error, such as a root that does not exist, is a panic with the
/// numbers in it.)
///
/// There are two classes, told apart by [`Error::is_fatal`]:
/// - *Refused*: the call was not made, and the communicator is as good as before. The text says what to do.
/// - *Failed*: the communicator is lost, on all ranks sooner or later. Every later call fails with [`Error::Aborted`], and what the
///   buffer holds is undefined. The text says which rank failed and why.
///
/// What MPI, CUDA, NCCL or the system say is by itself a refusal: of a world that does not begin, or of memory that is not
/// there. Where they end a call that ranks have begun, it is the cause of an [`Error::Failed`].
///
/// ```
/// use unisono::{Choice, Error, ErrorCode, ReduceOp, Vendor};
///
/// unisono::threads(2, |mut comm| {
///     let refused = comm.set_choice(Choice::Vendor(Vendor::Mpi)).unwrap_err();
///     assert!(!refused.is_fatal() && refused.code() == ErrorCode::Unsupported);
///     comm.barrier().unwrap();
///     // A rank that calls something else.
///     let failed = comm.all_reduce(&mut vec![1.0_f32; 10 + comm.rank()], ReduceOp::Sum).unwrap_err();
///     assert!(failed.is_fatal() && comm.barrier().unwrap_err().is_fatal());
/// });
/// ```
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

    /// This rank cannot go on in a call that ranks have begun.
    #[error("rank {rank} cannot go on: {cause}")]
    Failed {
        /// This rank.
        rank: Rank,
        /// Why: what MPI, CUDA, NCCL or the system say.
        #[source]
        cause: Box<Error>,
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
        #[source]
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
        #[source]
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

impl Error {
    /// Whether the communicator is lost. If not, the call was refused: all ranks may go on as if it had not been made. Where only
    /// some were refused, the others wait for them in it. ([`Error::OnRank0`] is no failure either: all ranks have met.)
    pub fn is_fatal(&self) -> bool {
        self.code().is_fatal()
    }

    /// What went wrong, as a number and a name that never change.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Timeout { .. } => ErrorCode::Timeout,
            Self::Mismatch { .. } => ErrorCode::Mismatch,
            Self::Left { .. } => ErrorCode::Left,
            Self::Aborted { .. } => ErrorCode::Aborted,
            Self::Failed { .. } => ErrorCode::Failed,
            Self::OnRank0 { .. } => ErrorCode::OnRank0,
            Self::Mpi { .. } => ErrorCode::Mpi,
            #[cfg(feature = "nccl")]
            Self::Cuda { .. } => ErrorCode::Cuda,
            #[cfg(feature = "nccl")]
            Self::Overdue { .. } => ErrorCode::Overdue,
            #[cfg(feature = "nccl")]
            Self::Nccl { .. } => ErrorCode::Nccl,
            Self::Library(_) => ErrorCode::Library,
            Self::Memory { .. } => ErrorCode::Memory,
            Self::Launch(_) => ErrorCode::Launch,
            Self::Unsupported(_) => ErrorCode::Unsupported,
            Self::Setting(_) => ErrorCode::Setting,
        }
    }

    /// The rank at which it went wrong, as far as this one knows: the one that did not come, has left, or failed first. Ranks that
    /// call different things are two, of which none is known to be wrong.
    pub fn failed_rank(&self) -> Option<Rank> {
        match *self {
            Self::Timeout { other, .. } | Self::Left { other, .. } => Some(other),
            Self::Aborted { by, .. } => Some(by),
            Self::Failed { rank, .. } => Some(rank),
            Self::OnRank0 { .. } => Some(0),
            _ => None,
        }
    }

    /// The same as the end of a call that rank `rank` had begun.
    pub(crate) fn in_call(self, rank: Rank) -> Self {
        if self.is_fatal() { self } else { Self::Failed { rank, cause: Box::new(self) } }
    }
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
