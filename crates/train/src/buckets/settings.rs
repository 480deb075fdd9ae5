//! The settings of buckets and their all-reduces.

use std::fmt;
use std::str::FromStr;

use super::{Overlap, Wire};
use crate::{LocalSteps, TrainError};
use unisono::{Communicator, Vendor, size};
use unisono_collectives::named;
use unisono_compress::Compression;
use unisono_steps::USUAL_FIRST_BUCKET_BYTES;

/// The settings of buckets and their all-reduces.
#[derive(Debug, Clone, PartialEq)]
pub struct BucketSettings {
    /// The maximum bytes of gradients in the first bucket. A larger single gradient still fits in it, and the limit of the other buckets applies if
    /// it is smaller.
    pub first_bucket_bytes: usize,
    /// The capacity of every other bucket.
    pub bucket_bytes: BucketBytes,
    /// The wire format of gradients.
    pub wire: Wire,
    /// The number of initial steps that send gradients as `f32` before a compressed wire format is used. Parameters change most in these steps, so
    /// delayed gradients do the most harm there. PyTorch's `start_powerSGD_iter`.
    pub uncompressed_steps: u64,
    /// The seed of wire formats with stochastic rounding; the same on all ranks.
    pub seed: u64,
    /// Whether bucket all-reduces overlap the backward pass. [`Overlap::Across`] needs [`Replica::brings_values`](crate::Replica::brings_values).
    pub overlap: Overlap,
    /// The order in which the gradients of several passes are added.
    pub order: Order,
    /// The scale of gradients on the wire as `f16`, whose largest value is 65504. It must be a power of two, the same on all ranks.
    pub f16_scale: f32,
    /// Whether each rank updates only [its own part](crate::Mirror::own) of every bucket, and holds only the optimizer state of that part. Gradients
    /// are then reduce-scattered, and updated parameters all-gathered. The bits are the same in both cases.
    pub shard_optimizer: bool,
    /// If set, gradients stay on their rank, and parameters are averaged after this many steps. This is another algorithm.
    pub local_steps: Option<LocalSteps>,
}

impl Default for BucketSettings {
    fn default() -> Self {
        Self {
            first_bucket_bytes: USUAL_FIRST_BUCKET_BYTES,
            bucket_bytes: BucketBytes::Auto,
            wire: Wire::F32,
            uncompressed_steps: 0,
            seed: 0,
            overlap: Overlap::Auto,
            order: Order::Free,
            f16_scale: 1.0,
            shard_optimizer: false,
            local_steps: None,
        }
    }
}

impl BucketSettings {
    /// Returns why these settings are invalid or contradict each other, if they do.
    pub fn conflict(&self) -> Option<String> {
        let Self { wire, f16_scale, .. } = self;
        match wire {
            // The bits after the sign and the exponent.
            Wire::F16 if !f16_scale.is_normal() || *f16_scale < 0.0 || f16_scale.to_bits() << 9 != 0 => {
                return Some(format!("the scale of f16 is `{f16_scale}`: it must be a power of two"));
            }
            Wire::Compressed(compression) if !compression.is_valid() => {
                return Some(format!("the wire format is `{compression}`: expected {}", Compression::NAMES));
            }
            Wire::F32 => {}
            _ if self.order == Order::Tree => {
                return Some(format!(
                    "gradients are rounded to {wire} between ranks, so the bits depend on the number of ranks: use --wire f32 \
                     with --order world-invariant"
                ));
            }
            _ => {}
        }
        let local = self.local_steps?;
        let why = match self {
            _ if local.steps == 0 => {
                return Some("the number of local steps is 0: it must be at least 1".to_owned());
            }
            _ if !local.outer.is_valid() => {
                return Some(format!(
                    "the outer step of local steps is `{}`: expected a rate above 0 and at most 10, and a momentum of at least 0 and below 1",
                    local.outer
                ));
            }
            Self { wire: Wire::F32, shard_optimizer: false, order: Order::Free, .. } => return None,
            Self { shard_optimizer: true, .. } => {
                "every rank updates its whole replica: remove --shard-optimizer"
            }
            Self { order: Order::Tree, .. } => {
                "the result depends on the number of ranks: remove --order world-invariant"
            }
            Self { wire, .. } => {
                &format!("no gradient is sent, and parameters are averaged as f32: remove --wire {wire}")
            }
        };
        Some(format!("with --local-steps {why}, or --local-steps"))
    }

    /// Returns the settings for a replica whose passes [communicate](crate::Replica::synchronizes) or do not. If they do, buckets overlap the
    /// backward pass even within a node, because a rank without samples has no backward pass to wait for.
    pub(crate) fn suited(&self, comm: &Communicator, synchronizes: bool) -> Result<Self, String> {
        self.conflict().map_or(Ok(()), Err)?;
        if !synchronizes {
            return Ok(self.clone());
        }
        let only = "the model normalises over the samples of all ranks (SyncBatchNorm)";
        let refuse = |why: String| Err(format!("{only}: {why}"));
        match self {
            Self { order: Order::Tree, .. } => refuse(
                "its statistics, and so the bits, depend on the number of ranks: remove --order world-invariant".to_owned(),
            ),
            Self { local_steps: Some(_), .. } => {
                refuse("no rank can step alone: remove --local-steps".to_owned())
            }
            Self { overlap: overlap @ (Overlap::InTurn | Overlap::Across), .. } if comm.ranks() > 1 => {
                refuse(format!("its passes wait for other ranks, so --overlap {overlap} could wait for ever: use auto"))
            }
            // MPI's own collectives block, and the collectives of other communicators with them.
            _ if comm.ranks() > 1 && comm.choice().vendor() == Some(Vendor::Mpi) => refuse(format!(
                "MPI's own all-reduce of gradients would block its all-reduces: choose another algorithm than {}, or auto",
                comm.choice()
            )),
            _ => Ok(Self { overlap: Overlap::Beside, ..self.clone() }),
        }
    }
}

/// The maximum bytes of gradients in a bucket.
///
/// ```
/// use unisono_train::BucketBytes;
///
/// assert_eq!("4M".parse::<BucketBytes>()?, BucketBytes::Fixed(4 << 20));
/// assert_eq!("auto".parse::<BucketBytes>()?, BucketBytes::default());
/// # Ok::<(), unisono_train::TrainError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BucketBytes {
    /// Where buckets overlap the backward pass between nodes: the smallest size that costs at most 5 % more per byte than a very large one, by the
    /// cost model. Elsewhere 25 MiB.
    #[default]
    Auto,
    /// A fixed number of bytes.
    Fixed(usize),
}

impl FromStr for BucketBytes {
    type Err = TrainError;

    fn from_str(text: &str) -> Result<Self, TrainError> {
        let expected = || "expected a number of bytes, such as 65536, 64K or 25M, or auto".to_owned();
        match text {
            "auto" => Ok(Self::Auto),
            _ => size::bytes(text).map(Self::Fixed).ok_or_else(|| TrainError::Setting(expected())),
        }
    }
}

impl fmt::Display for BucketBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Fixed(bytes) => f.pad(&size::text(*bytes)),
        }
    }
}

named! {
    /// The order in which the gradients of several passes are added.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Order: "order of additions" {
        /// Adds one pass after the other, then over ranks in the order of the fastest algorithm.
        Free = "free",
        /// Adds in a balanced binary tree over all passes of all ranks, so that the bits do not depend on the division of the passes among ranks. The
        /// number of passes of a step must be a power of two on each rank, and so must the number of ranks.
        ///
        /// The tree needs memory for one copy of all gradients per level on a rank, and one more pass over them for every pass but the first. It
        /// restricts the all-reduce to recursive doubling.
        Tree = "world-invariant",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_sizes_round_trip_through_text() {
        for text in ["auto", "25M", "77"] {
            assert_eq!(text.parse::<BucketBytes>().unwrap().to_string(), text);
        }
        assert!("large".parse::<BucketBytes>().unwrap_err().to_string().contains("or auto"));
    }
}
