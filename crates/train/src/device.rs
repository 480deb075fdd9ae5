//! The settings that a GPU does not support, for any framework.

use super::buckets::{BucketSettings, Order, Overlap, Wire};

/// Returns the first of these settings that a GPU does not support, if any.
pub fn refusal(buckets: &BucketSettings) -> Option<String> {
    let what = match buckets {
        BucketSettings { order: Order::Tree, .. } => "the order of additions depends on the number of ranks",
        BucketSettings { wire: wire @ (Wire::Bf16 | Wire::F16 | Wire::Compressed(_)), .. } => {
            &format!("gradients are sent as f32, not as {wire}")
        }
        BucketSettings { shard_optimizer: true, .. } => {
            "every rank holds the whole optimizer state, so --shard-optimizer needs --device cpu"
        }
        BucketSettings { local_steps: Some(_), .. } => {
            "gradients are averaged, and not parameters, so --local-steps needs --device cpu"
        }
        BucketSettings { overlap: Overlap::Across, .. } => {
            "all parameters are updated before the next forward pass, so --overlap across needs --device cpu"
        }
        BucketSettings { overlap: Overlap::InTurn, .. } => {
            "gradients are sent during the backward pass, not in turn"
        }
        _ => return None,
    };
    Some(format!("on a GPU {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gpu_does_not_do_is_said() {
        let usual = BucketSettings::default;
        let refused = |settings| refusal(&settings).unwrap();
        assert_eq!(refusal(&usual()), None);
        assert_eq!(refusal(&BucketSettings { overlap: Overlap::Beside, ..usual() }), None);
        assert!(refused(BucketSettings { order: Order::Tree, ..usual() }).contains("number of ranks"));
        assert!(refused(BucketSettings { wire: Wire::F16, ..usual() }).contains("not as f16"));
        assert!(refused(BucketSettings { overlap: Overlap::Across, ..usual() }).contains("across"));
        assert!(refused(BucketSettings { overlap: Overlap::InTurn, ..usual() }).contains("in turn"));
        let sharded = refused(BucketSettings { shard_optimizer: true, ..usual() });
        assert!(sharded.contains("--shard-optimizer needs --device cpu"), "{sharded}");
    }
}
