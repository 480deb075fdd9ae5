//! Stable numbers and names of errors.

use unisono_collectives::named;

/// The last code after which the communicator remains usable.
const LAST_REFUSED: i32 = 100;

named! {
    /// The kind of an error, as a stable number and name, for other languages too. 0 is not used, and stands for success.
    ///
    /// Codes up to 100 are *refused* calls, after which the communicator remains usable; those above are *failed* ones, after which
    /// it is lost.
    ///
    /// ```
    /// use unisono::{Error, ErrorCode};
    ///
    /// let refused = Error::Setting("UNISONO_TIMEOUT_S is no number".to_owned());
    /// assert_eq!((refused.code(), refused.code().number()), (ErrorCode::Setting, 6));
    /// assert_eq!(ErrorCode::from_number(101), Some(ErrorCode::Timeout));
    /// assert_eq!("timeout".parse(), Ok(ErrorCode::Timeout));
    /// assert!(ErrorCode::Timeout.is_fatal() && !refused.code().is_fatal());
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[repr(i32)]
    #[non_exhaustive]
    pub enum ErrorCode: "error" {
        /// [`Error::Unsupported`](crate::Error::Unsupported).
        Unsupported = "unsupported" as 1,
        /// [`Error::OnRank0`](crate::Error::OnRank0).
        OnRank0 = "on-rank-0" as 2,
        /// [`Error::Memory`](crate::Error::Memory).
        Memory = "memory" as 3,
        /// [`Error::Library`](crate::Error::Library).
        Library = "library" as 4,
        /// [`Error::Launch`](crate::Error::Launch).
        Launch = "launch" as 5,
        /// [`Error::Setting`](crate::Error::Setting).
        Setting = "setting" as 6,
        /// [`Error::Mpi`](crate::Error::Mpi).
        Mpi = "mpi" as 7,
        /// `Error::Cuda` and `Error::HostToDevice`, of the feature `nccl`.
        Cuda = "cuda" as 8,
        /// `Error::Nccl`, of the feature `nccl`.
        Nccl = "nccl" as 9,
        /// [`Error::Timeout`](crate::Error::Timeout), and [`Error::Missing`](crate::Error::Missing).
        Timeout = "timeout" as 101,
        /// [`Error::Mismatch`](crate::Error::Mismatch).
        Mismatch = "mismatch" as 102,
        /// [`Error::Left`](crate::Error::Left).
        Left = "left" as 103,
        /// [`Error::Aborted`](crate::Error::Aborted).
        Aborted = "aborted" as 104,
        /// [`Error::Failed`](crate::Error::Failed).
        Failed = "failed" as 105,
        /// `Error::Overdue`, of the feature `nccl`.
        Overdue = "overdue" as 106,
        /// [`Error::Partitioned`](crate::Error::Partitioned).
        Partitioned = "partitioned" as 107,
    }
}

impl ErrorCode {
    /// Returns the number.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// Returns the code with this number, if there is one.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.number() == number)
    }

    /// Returns whether the communicator is lost.
    pub fn is_fatal(self) -> bool {
        self.number() > LAST_REFUSED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs in other languages use these numbers: never change or reuse one.
    #[test]
    fn numbers_do_not_change() {
        let numbers = ErrorCode::ALL.map(|code| (code.number(), code.name()));
        let pinned = [
            (1, "unsupported"),
            (2, "on-rank-0"),
            (3, "memory"),
            (4, "library"),
            (5, "launch"),
            (6, "setting"),
            (7, "mpi"),
            (8, "cuda"),
            (9, "nccl"),
            (101, "timeout"),
            (102, "mismatch"),
            (103, "left"),
            (104, "aborted"),
            (105, "failed"),
            (106, "overdue"),
            (107, "partitioned"),
        ];
        assert_eq!(numbers, pinned);
        assert!(ErrorCode::ALL.iter().all(|code| ErrorCode::from_number(code.number()) == Some(*code)));
        assert_eq!([0, -1, 100, 108].map(ErrorCode::from_number), [None; 4]);
    }
}
