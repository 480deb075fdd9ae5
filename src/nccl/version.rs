//! NCCL's versions.

use std::fmt;

/// A version of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl Version {
    /// Returns a version by its three numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Returns whether several ranks of a communicator may share a GPU, if `NCCL_MULTI_RANK_GPU_ENABLE=1` is set.
    pub fn multi_rank_gpu(self) -> bool {
        self >= Self::new(2, 30, 3)
    }

    /// Decodes NCCL's version number: `22907` is 2.29.7, and up to 2.8 `2804` was 2.8.4.
    pub(crate) fn from_code(code: u32) -> Self {
        let major_unit = if code < 10_000 { 1000 } else { 10_000 };
        Self::new(code / major_unit, code % major_unit / 100, code % 100)
    }

    /// Encodes the version as NCCL 2.9 and newer do.
    pub(crate) fn code(self) -> u32 {
        self.major * 10_000 + self.minor * 100 + self.patch
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, minor, patch } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_numbering_schemes_are_decoded() {
        for (code, text) in [(2_804, "2.8.4"), (20_906, "2.9.6"), (23_007, "2.30.7"), (23_203, "2.32.3")] {
            assert_eq!(Version::from_code(code).to_string(), text);
        }
    }

    #[test]
    fn versions_are_ordered_numerically() {
        assert!(Version::new(2, 9, 9) < Version::new(2, 10, 0));
        assert!(!Version::new(2, 30, 2).multi_rank_gpu() && Version::new(2, 30, 3).multi_rank_gpu());
    }
}
