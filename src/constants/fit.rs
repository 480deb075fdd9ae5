//! Lines through measured times.

use unisono_collectives::model::{InvalidLink, Link, Range};

/// The time of one message of a size, or of one rank in one pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) size_bytes: usize,
    pub(super) time_us: f64,
    pub(super) reduces: bool,
}

/// The largest sizes of the ranges but the last: what messages of about the same size have in common are the ways of the
/// transports and the caches that they fit.
const BOUNDS: [usize; 8] = [512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 16 << 20];

/// Returns the link that agrees best with what was measured, for each range of sizes.
///
/// A range is fitted to the samples from its lower bound to its upper one; those beyond the largest sample belong to
/// the last range that has any.
pub(super) fn link(samples: &[Sample]) -> Result<Link, InvalidLink> {
    let mut ranges = Vec::new();
    let mut from = 0;
    for up_to_bytes in BOUNDS.into_iter().chain([usize::MAX]) {
        let inside: Vec<_> = samples
            .iter()
            .copied()
            .filter(|sample| sample.size_bytes >= from && sample.size_bytes <= up_to_bytes)
            .collect();
        // A bound belongs to both of its ranges, so that they meet there; it alone makes none.
        if inside.iter().any(|sample| sample.size_bytes > from) {
            ranges.push(range(up_to_bytes, &inside));
            from = up_to_bytes;
        }
    }
    if let Some(last) = ranges.last_mut() {
        last.up_to_bytes = usize::MAX;
    }
    Link::new(ranges)
}

/// By how much what the constants say is off what was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Off {
    /// The median over all sizes, in percent of what was measured.
    pub typical_percent: f64,
    /// The most.
    pub worst_percent: f64,
    /// At this size.
    pub worst_at_bytes: usize,
}

pub(super) fn off(link: &Link, samples: &[Sample]) -> Off {
    let percent = |sample: &Sample| {
        let said_us = link.time_us(sample.size_bytes, sample.reduces);
        (100.0 * (said_us / sample.time_us - 1.0).abs(), sample.size_bytes)
    };
    let mut percents: Vec<_> = samples.iter().map(percent).collect();
    percents.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (worst_percent, worst_at_bytes) = percents[percents.len() - 1];
    Off { typical_percent: percents[percents.len() / 2].0, worst_percent, worst_at_bytes }
}

/// Larger messages than these take most of their time for their bytes.
const SMALL_BYTES: usize = 256 << 10;
/// The most that is latency of the least time of a range of large messages.
const LATENCY_SHARE: f64 = 0.25;
/// Rates above this are no rates of a memory: the samples say nothing of them.
const MOST_GB_PER_S: f64 = 999.0;

/// Returns the line α + n/rate of each kind, with one α for both, whose errors in percent of the times have the
/// least sum of squares; no α below 0, and no time that falls with the size.
fn range(up_to_bytes: usize, samples: &[Sample]) -> Range {
    let of = |reduces: bool| samples.iter().filter(move |sample| sample.reduces == reduces);
    // The best slope for an α is known at once, and so is its error; the best α is looked for.
    let slope = |reduces: bool, alpha_us: f64| {
        let mut sums = (0.0, 0.0);
        for &Sample { size_bytes, time_us, .. } in of(reduces) {
            let x = size_bytes as f64 / time_us;
            sums = (sums.0 + x * (1.0 - alpha_us / time_us), sums.1 + x * x);
        }
        (sums.0 / sums.1).max(1.0 / (MOST_GB_PER_S * 1e3))
    };
    let error = |alpha_us: f64| {
        let off = |sample: &Sample| {
            let slope = slope(sample.reduces, alpha_us);
            ((alpha_us + sample.size_bytes as f64 * slope) / sample.time_us - 1.0).powi(2)
        };
        samples.iter().map(off).sum::<f64>()
    };
    // Two samples determine a line, which may be anywhere at 0; but no message spends most of its time before its first byte arrives,
    // unless it is a small one.
    let (least_us, largest) = samples.iter().fold((f64::INFINITY, 0), |(least_us, largest), sample| {
        (sample.time_us.min(least_us), sample.size_bytes.max(largest))
    });
    let alpha_us = least(error, if largest > SMALL_BYTES { LATENCY_SHARE * least_us } else { least_us });
    let rate = |reduces: bool| 1.0 / (slope(reduces, alpha_us) * 1e3);
    let (moves, reduces) = (of(false).next().is_some(), of(true).next().is_some());
    Range {
        up_to_bytes,
        alpha_us: rounded(alpha_us),
        move_gb_per_s: rounded(rate(!moves)),
        reduce_gb_per_s: rounded(rate(reduces)),
    }
}

/// Returns the position between 0 and `most` at which a function that falls and then rises is least: by
/// thirds.
pub(super) fn least(function: impl Fn(f64) -> f64, most: f64) -> f64 {
    let (mut from, mut to) = (0.0, most);
    for _ in 0..100 {
        let (one, other) = (from + (to - from) / 3.0, to - (to - from) / 3.0);
        if function(one) <= function(other) { to = other } else { from = one }
    }
    from
}

/// As many digits as a file has.
fn rounded(value: f64) -> f64 {
    let scale = if value < 10.0 { 1000.0 } else { 10.0 };
    ((value * scale).round() / scale).max(if value > 0.0 { 1e-3 } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(time_us: impl Fn(usize, bool) -> f64) -> Vec<Sample> {
        let sizes = (3..=23).map(|shift| 1 << shift);
        let both = |size_bytes| {
            [false, true].map(|reduces| Sample { size_bytes, time_us: time_us(size_bytes, reduces), reduces })
        };
        sizes.flat_map(both).collect()
    }

    #[test]
    fn what_is_a_link_is_found_again() {
        let time_us = |size: usize, reduces| 2.0 + size as f64 / if reduces { 4e3 } else { 8e3 };
        let samples = samples(time_us);
        let link = link(&samples).unwrap();
        assert_eq!(link.ranges().len(), 7);
        assert!(off(&link, &samples).worst_percent < 1.0, "{link:?}");
        for range in &link.ranges()[2..5] {
            let Range { alpha_us, move_gb_per_s, reduce_gb_per_s, .. } = *range;
            assert!((alpha_us - 2.0).abs() < 0.1 && (move_gb_per_s - 8.0).abs() < 0.1, "{range:?}");
            assert!((reduce_gb_per_s - 4.0).abs() < 0.1, "{range:?}");
        }
    }

    #[test]
    fn odd_times_still_make_a_link() {
        // Times that fall, and times through the origin.
        let falling = samples(|size, _| 10.0 - (size as f64).log2() / 10.0);
        let steep = samples(|size, _| size as f64 / 1e3);
        for samples in [falling, steep] {
            let link = link(&samples).unwrap();
            assert!(link.ranges().iter().all(|range| range.alpha_us >= 0.0));
        }
    }

    #[test]
    fn few_sizes_make_fewer_ranges() {
        let samples: Vec<_> =
            samples(|size, _| 1.0 + size as f64).into_iter().filter(|s| s.size_bytes <= 8192).collect();
        let link = link(&samples).unwrap();
        assert_eq!(
            link.ranges().iter().map(|range| range.up_to_bytes).collect::<Vec<_>>(),
            [512, 4096, usize::MAX]
        );
    }
}
