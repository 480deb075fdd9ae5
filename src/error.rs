//! Errors of collectives, messages and set-up.

use std::fmt;
use std::time::Duration;

use unisono_collectives::Rank;

use crate::record::{Doing, POINT_TO_POINT, Seconds};

mod code;

pub use code::ErrorCode;

/// A result whose error is [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A runtime error. A programming error, such as an invalid root, panics with a message instead.
///
/// There are two classes, which [`Error::is_fatal`] distinguishes:
/// - *Refused*: the call was not made, and the communicator remains usable. The message contains the remedy.
/// - *Failed*: the communicator is lost, eventually on all ranks. Every later call fails with [`Error::Aborted`], and the buffer
///   is undefined. The message names the rank that failed and the cause.
///
/// An error of MPI, CUDA, NCCL or the system is a refusal if a world cannot start or memory is not available. If it ends a call
/// that has started, it is the cause of an [`Error::Failed`].
///
/// ```
/// use unisono::{Choice, Error, ErrorCode, ReduceOp, Vendor};
///
/// unisono::threads(2, |mut comm| {
///     let refused = comm.set_choice(Vendor::Mpi).unwrap_err();
///     assert!(!refused.is_fatal() && refused.code() == ErrorCode::Unsupported);
///     comm.barrier().unwrap();
///     // The ranks pass different counts.
///     let failed = comm.all_reduce(&mut vec![1.0_f32; 10 + comm.rank()], ReduceOp::Sum).unwrap_err();
///     assert!(failed.is_fatal() && comm.barrier().unwrap_err().is_fatal());
/// });
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another rank did not arrive before the deadline.
    #[error(
        "{at}: waited {} for rank {other}{}{}",
        Seconds(waited.as_secs_f64()),
        whereabouts(doing.as_deref()),
        if missing == other { String::new() } else { format!("; rank {missing} is missing") }
    )]
    Timeout {
        /// The call and position of this rank.
        at: Box<Place>,
        /// The rank for which this one waited.
        other: Rank,
        /// The rank for which that one waits, directly or through others that wait, as far as they share memory; the same one if it waits for none.
        missing: Rank,
        /// The time for which the other rank was silent.
        waited: Duration,
        /// The activity of the other rank, if it is on the same node.
        doing: Option<Box<Doing>>,
    },

    /// Another rank made a different call.
    #[error("{at}: rank {} called {ours}, but rank {other} called {theirs}", at.rank)]
    Mismatch {
        /// The call and position of this rank.
        at: Box<Place>,
        /// The call of this rank.
        ours: String,
        /// The other rank.
        other: Rank,
        /// The call of the other rank.
        theirs: String,
    },

    /// Another rank has dropped its communicator, possibly by a panic.
    #[error(
        "{at}: rank {other} has left the world: it dropped its communicator (if because of an error of its own, that rank reports it)"
    )]
    Left {
        /// The call and position of this rank.
        at: Box<Place>,
        /// The rank that left.
        other: Rank,
    },

    /// A rank that is alive does not take part in [`Communicator::shrink`](crate::Communicator::shrink).
    #[error(
        "rank {rank} cannot shrink: rank {other}{} is alive{}, and has not called `shrink` or gone on with it for {}: \
         end it, or let it call `shrink`",
        process_id.map_or(String::new(), |id| format!(" (process {id})")),
        if *is_stopped { " but stopped" } else { "" },
        Seconds(waited.as_secs_f64())
    )]
    Missing {
        /// This rank.
        rank: Rank,
        /// The rank that is missing.
        other: Rank,
        /// Its process, if it is on this machine.
        process_id: Option<u32>,
        /// Whether its process is stopped, by SIGSTOP or a debugger.
        is_stopped: bool,
        /// The time for which this rank has waited for it.
        waited: Duration,
    },

    /// This rank reaches too few of the others to continue without the unreachable ones. Unlike a dead rank, an unreachable one may
    /// be alive and continue on the other side of a divided network.
    #[error(
        "rank {rank} cannot continue: ranks {lost:?} are out of reach, may be alive, and continue without it if they are most of the ranks \
         that are left"
    )]
    Partitioned {
        /// This rank.
        rank: Rank,
        /// The ranks that it does not reach.
        lost: Vec<Rank>,
    },

    /// An earlier failure, on this rank or another.
    #[error("rank {rank} cannot continue{}: {cause}", because(*rank, *by))]
    Aborted {
        /// This rank.
        rank: Rank,
        /// The rank that failed first.
        by: Rank,
        /// The cause that it reported.
        cause: String,
    },

    /// This rank cannot continue a call that has started.
    #[error("rank {rank} cannot continue: {cause}")]
    Failed {
        /// This rank.
        rank: Rank,
        /// The error of MPI, CUDA, NCCL or the system, or of the function of a reduction in C.
        #[source]
        cause: Box<Error>,
    },

    /// The work of [`on_rank0`](crate::Communicator::on_rank0) failed. All ranks get this error, and the communicator remains usable.
    #[error("rank 0 failed while the others waited: {label}: {cause}")]
    OnRank0 {
        /// The label of the work.
        label: String,
        /// Rank 0's error text, possibly truncated.
        cause: String,
    },

    /// An MPI function failed.
    #[error("{call} failed with code {code}: {text}")]
    Mpi {
        /// The function.
        call: &'static str,
        /// The error code that it returned.
        code: i32,
        /// MPI's text for the code.
        text: String,
    },

    /// A function of the CUDA driver failed.
    #[cfg(feature = "nccl")]
    #[error("CUDA: {what}: {cause}")]
    Cuda {
        /// The operation.
        what: &'static str,
        /// The driver's error.
        #[source]
        cause: cudarc::driver::DriverError,
    },

    /// CUDA failed at a copy of [`HostToDevice`](crate::HostToDevice), or then reported an error of earlier work.
    #[cfg(feature = "nccl")]
    #[error("rank {rank}: GPU {gpu} failed when an array was copied to it, or before: {cause}")]
    HostToDevice {
        /// This rank.
        rank: Rank,
        /// The GPU's number among those visible to the process.
        gpu: usize,
        /// The driver's error.
        #[source]
        cause: cudarc::driver::DriverError,
    },

    /// A GPU did not finish before the deadline.
    #[cfg(feature = "nccl")]
    #[error("rank {rank}: waited {} s for {what}; another rank may have ended, or the GPU hangs", waited.as_secs_f64().round())]
    Overdue {
        /// This rank.
        rank: Rank,
        /// The operation.
        what: &'static str,
        /// The time that this rank waited.
        waited: Duration,
    },

    /// An NCCL function failed.
    #[cfg(feature = "nccl")]
    #[error("{call} failed with code {code}: {text}")]
    Nccl {
        /// The function.
        call: &'static str,
        /// The result code that it returned.
        code: u32,
        /// NCCL's text for the code.
        text: String,
    },

    /// A library loaded at run time is missing, or is not the required one.
    #[error("{0}")]
    Library(String),

    /// The system does not provide the memory, or does not let ranks share it.
    #[error("cannot allocate or share {size_bytes} bytes of memory: {cause}{}", crate::system::advice(cause))]
    Memory {
        /// The requested size.
        size_bytes: usize,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },

    /// The program was launched in a way that cannot work.
    #[error("{0}")]
    Launch(String),

    /// This build, world or vendor does not support the call.
    #[error("{0}")]
    Unsupported(String),

    /// An invalid value, in an argument or the environment.
    #[error("{0}")]
    Setting(String),
}

impl Error {
    /// Returns whether the communicator is lost. If not, the call was refused, and ranks may continue as if it had not been made.
    /// If only some ranks were refused, the others wait for them in the call. [`Error::OnRank0`] is not fatal, since all ranks
    /// completed the call.
    pub fn is_fatal(&self) -> bool {
        self.code().is_fatal()
    }

    /// Returns the kind of the error, as a stable number and name.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Timeout { .. } | Self::Missing { .. } => ErrorCode::Timeout,
            Self::Mismatch { .. } => ErrorCode::Mismatch,
            Self::Left { .. } => ErrorCode::Left,
            Self::Aborted { .. } => ErrorCode::Aborted,
            Self::Failed { .. } => ErrorCode::Failed,
            Self::Partitioned { .. } => ErrorCode::Partitioned,
            Self::OnRank0 { .. } => ErrorCode::OnRank0,
            Self::Mpi { .. } => ErrorCode::Mpi,
            #[cfg(feature = "nccl")]
            Self::Cuda { .. } | Self::HostToDevice { .. } => ErrorCode::Cuda,
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

    /// Returns the rank that failed, as known here: the rank that did not arrive, has left, is out of reach, or failed first, even
    /// if another rank reported it or it failed in an earlier call. `None` for a mismatch, where either rank may be wrong.
    pub fn failed_rank(&self) -> Option<Rank> {
        match *self {
            Self::Partitioned { ref lost, .. } => lost.first().copied(),
            Self::Timeout { missing: other, .. } | Self::Missing { other, .. } | Self::Left { other, .. } => {
                Some(other)
            }
            Self::Aborted { by, .. } => Some(by),
            Self::Failed { rank, .. } => Some(rank),
            Self::OnRank0 { .. } => Some(0),
            _ => None,
        }
    }

    /// Returns the rank that failed first and its cause, without the text that a later call adds. `rank` is this rank.
    pub(crate) fn first_cause(&self, rank: Rank) -> (Rank, String) {
        match self {
            Self::Aborted { by, cause, .. } => (*by, cause.clone()),
            _ => (self.failed_rank().unwrap_or(rank), self.to_string()),
        }
    }

    /// Returns the fatal form of this error, for a call that rank `rank` has started.
    pub(crate) fn in_call(self, rank: Rank) -> Self {
        if self.is_fatal() { self } else { Self::Failed { rank, cause: Box::new(self) } }
    }
}

/// Formats as `Display` does: Rust prints an error that `main` returns with `Debug`, and it should read as a sentence.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Describes the state of a rank that did not arrive.
fn whereabouts(doing: Option<&Doing>) -> String {
    match doing {
        None => "; it is late, has ended, or is in another collective".to_owned(),
        Some(doing) => format!(" (process {} on {}), which {doing}", doing.process_id, doing.host),
    }
}

/// Formats the rank that caused the failure, unless it is this one.
fn because(rank: Rank, by: Rank) -> String {
    if by == rank { String::new() } else { format!(", because rank {by} failed") }
}

/// The position of a rank at the time of an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The rank.
    pub rank: Rank,
    /// The operation: "all-reduce", for example; "send", "receive", "receive-any" or "exchange" for point-to-point messages.
    pub operation: &'static str,
    /// The sequence number: of a collective in this world; of a message in its direction between the two ranks; of a message
    /// from any rank among those received.
    pub sequence: u64,
    /// The algorithm; "point-to-point" for messages.
    pub algorithm: &'static str,
    /// The phase of the plan.
    pub phase: &'static str,
    /// The step of the phase; the tag of a message.
    pub step: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, operation, sequence, algorithm, phase, step } = self;
        if *algorithm == POINT_TO_POINT {
            write!(f, "rank {rank}, {operation} #{sequence}")?;
            return if *step == 0 { Ok(()) } else { write!(f, " with tag {step}") };
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
