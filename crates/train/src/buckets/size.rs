//! The size of buckets.
//!
//! A bucket can be sent once all of its gradients are known. During a backward pass, small buckets therefore hide more of their time than large ones,
//! but each costs at least the latency of an all-reduce.

use std::fmt;

use super::Wire;
use super::settings::{BucketBytes, BucketSettings};
use super::wire::dtype;
use unisono::{Call, Choice, Communicator, ReduceOp, Why, size};
use unisono_steps::{USUAL_BUCKET_BYTES, bucket_bytes};

/// A size of buckets, and the reason for its choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketSize {
    /// The maximum bytes of gradients in a bucket.
    pub bytes: usize,
    /// The reason.
    pub why: &'static str,
}

impl fmt::Display for BucketSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", size::text(self.bytes), self.why)
    }
}

impl BucketSize {
    /// Returns the bucket size for these settings. Called by all ranks, which receive the same result.
    pub(crate) fn of(comm: &mut Communicator, settings: &BucketSettings) -> Self {
        let BucketSettings { overlap, wire, .. } = *settings;
        Self::fixed_or(settings, || {
            let (nodes, is_compressed) = (comm.topology().nodes(), matches!(wire, Wire::Compressed(_)));
            let (bytes, why) = bucket_bytes(nodes, overlap, is_compressed, |bytes| {
                let all_reduce = Call::all_reduce(dtype(wire), ReduceOp::Sum, bytes / size_of::<f32>());
                match comm.call().algorithm(Choice::Auto).selection(&all_reduce).why {
                    Why::Predicted { time_us, .. } => Some(time_us),
                    _ => None,
                }
            });
            Self { bytes, why }
        })
    }

    /// Returns the bucket size for a GPU, or for any transfer without a cost model.
    #[doc(hidden)]
    pub fn usual_of(settings: &BucketSettings) -> Self {
        let why = "the cost model does not price them";
        Self::fixed_or(settings, || Self { bytes: USUAL_BUCKET_BYTES, why })
    }

    /// Returns the size in the settings or, if it is `auto`, this one.
    #[doc(hidden)]
    pub fn fixed_or(settings: &BucketSettings, auto: impl FnOnce() -> Self) -> Self {
        match settings.bucket_bytes {
            BucketBytes::Fixed(bytes) => Self { bytes, why: "it was asked for" },
            BucketBytes::Auto => auto(),
        }
    }
}

#[cfg(test)]
mod tests {
    use unisono::{Topology, Unisono};

    use super::*;
    use crate::buckets::Overlap;

    /// Returns the size on every rank, which must be the same.
    fn size(nodes: &[usize], settings: &BucketSettings) -> BucketSize {
        let world = Unisono::builder().nodes(Topology::from_node_sizes(nodes));
        let sizes =
            world.on_threads(nodes.iter().sum(), |mut comm| BucketSize::of(&mut comm, settings)).unwrap();
        assert!(sizes.iter().all(|size| *size == sizes[0]), "{sizes:?}");
        sizes[0]
    }

    #[test]
    fn automatic_buckets_between_nodes_are_small() {
        let auto = BucketSettings::default;
        for nodes in [&[1, 1][..], &[1, 1, 1], &[2, 2], &[3, 1]] {
            let BucketSize { bytes, why } = size(nodes, &auto());
            assert!(
                (128 << 10..=8 << 20).contains(&bytes) && why.contains("5 %"),
                "{nodes:?}: {bytes} {why}"
            );
            let half = BucketSettings { wire: Wire::Bf16, ..auto() };
            assert!(size(nodes, &half).bytes >= bytes, "fewer bytes on the wire, and the same latency");
        }
    }

    #[test]
    fn automatic_buckets_elsewhere_are_large() {
        let auto = BucketSettings::default;
        let in_turn = BucketSettings { overlap: Overlap::InTurn, ..auto() };
        let compressed = BucketSettings { wire: "int8".parse().unwrap(), ..auto() };
        for (nodes, settings, why) in [
            (&[3][..], auto(), "share a node"),
            (&[1, 1], in_turn, "overlaps"),
            (&[1, 1], compressed, "compressed"),
        ] {
            let size = size(nodes, &settings);
            assert!(size.bytes == USUAL_BUCKET_BYTES && size.why.contains(why), "{size}");
        }
        let fixed = BucketSettings { bucket_bytes: BucketBytes::Fixed(77), ..auto() };
        assert_eq!(size(&[1, 1], &fixed).to_string(), "77: it was asked for");
    }
}
