//! Lines through measured times.

use unisono_collectives::model::{InvalidLink, Link, Range};

/// Work with messages of one size, one after the other, or with parts of one size in a pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Work {
    /// The number of messages, and how often the bytes of one are copied, and how often reduced.
    pub(super) messages: usize,
    pub(super) moved: usize,
    pub(super) reduced: usize,
}

/// The time of such work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) size_bytes: usize,
    pub(super) time_us: f64,
    pub(super) work: Work,
}

impl Sample {
    fn said_us(&self, link: &Link) -> f64 {
        let latency_us = link.latency_us(self.size_bytes);
        let bytes_us = |reduces| link.time_us(self.size_bytes, reduces) - latency_us;
        self.said([latency_us, bytes_us(false), bytes_us(true)])
    }

    fn said(&self, [latency_us, moved_us, reduced_us]: [f64; 3]) -> f64 {
        let Work { messages, moved, reduced } = self.work;
        messages as f64 * latency_us + moved as f64 * moved_us + reduced as f64 * reduced_us
    }
}

/// The largest sizes of the ranges but the last: what messages of about the same size have in common are the ways of the
/// transports and the caches that they fit.
const BOUNDS: [usize; 9] = [128, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 16 << 20];

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
    let percent =
        |sample: &Sample| (100.0 * (sample.said_us(link) / sample.time_us - 1.0).abs(), sample.size_bytes);
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
    let error = |alpha_us: f64| {
        let slopes = slopes(samples, alpha_us);
        samples.iter().map(|sample| off_line(sample, alpha_us, slopes).powi(2)).sum::<f64>()
    };
    // Two samples determine a line, which may be anywhere at 0; but no message spends most of its time before its first byte arrives,
    // unless it is a small one.
    let (least_us, largest) = samples.iter().fold((f64::INFINITY, 0), |(least_us, largest), sample| {
        let message_us = sample.time_us / sample.work.messages as f64;
        (message_us.min(least_us), sample.size_bytes.max(largest))
    });
    let alpha_us = least(error, if largest > SMALL_BYTES { LATENCY_SHARE * least_us } else { least_us });
    let [move_gb_per_s, reduce_gb_per_s] =
        slopes(samples, alpha_us).map(|slope| rounded(1.0 / (slope * 1e3)));
    Range { up_to_bytes, alpha_us: rounded(alpha_us), move_gb_per_s, reduce_gb_per_s }
}

/// The error of a line, as a share of what was measured.
fn off_line(sample: &Sample, alpha_us: f64, slopes: [f64; 2]) -> f64 {
    let [moved_us, reduced_us] = slopes.map(|slope| sample.size_bytes as f64 * slope);
    sample.said([alpha_us, moved_us, reduced_us]) / sample.time_us - 1.0
}

/// Returns the best slopes for an α: the microseconds that a byte takes that is moved, and reduced. A kind without samples has the slope of
/// the other.
fn slopes(samples: &[Sample], alpha_us: f64) -> [f64; 2] {
    let (mut products, mut sides) = ([[0.0; 2]; 2], [0.0; 2]);
    for sample in samples {
        let Work { moved, reduced, .. } = sample.work;
        let row = [moved, reduced].map(|times| (times * sample.size_bytes) as f64 / sample.time_us);
        let left = -off_line(sample, alpha_us, [0.0; 2]);
        for (one, x) in row.into_iter().enumerate() {
            sides[one] += x * left;
            row.into_iter().enumerate().for_each(|(other, y)| products[one][other] += x * y);
        }
    }
    let [[moved, both], [_, reduced]] = products;
    let least = 1.0 / (MOST_GB_PER_S * 1e3);
    // The best slope of a kind, beside one of the other.
    let beside = |kind: usize, other: f64| ((sides[kind] - both * other) / products[kind][kind]).max(least);
    if moved == 0.0 {
        return [beside(1, 0.0); 2];
    }
    if reduced == 0.0 {
        return [beside(0, 0.0); 2];
    }
    let determinant = moved * reduced - both * both;
    // (Not a number if the samples do not tell the kinds apart.)
    let free = (sides[0] * reduced - sides[1] * both) / determinant;
    let of_reduced = beside(1, free.max(least));
    [beside(0, of_reduced), of_reduced]
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

    /// Messages that are reduced; and as many more that are moved after them.
    fn samples(time_us: impl Fn(usize, bool) -> f64) -> Vec<Sample> {
        let sizes = (3..=23).map(|shift| 1 << shift);
        let both = |size_bytes| {
            let [moved_us, reduced_us] = [false, true].map(|reduces| time_us(size_bytes, reduces));
            [
                (3.0 * reduced_us, Work { messages: 3, moved: 0, reduced: 3 }),
                (2.0 * (moved_us + reduced_us), Work { messages: 4, moved: 2, reduced: 2 }),
            ]
            .map(|(time_us, work)| Sample { size_bytes, time_us, work })
        };
        sizes.flat_map(both).collect()
    }

    #[test]
    fn what_is_a_link_is_found_again() {
        let time_us = |size: usize, reduces| 2.0 + size as f64 / if reduces { 4e3 } else { 8e3 };
        let samples = samples(time_us);
        let link = link(&samples).unwrap();
        assert_eq!(link.ranges().len(), 8);
        assert!(off(&link, &samples).worst_percent < 1.0, "{link:?}");
        for range in &link.ranges()[3..6] {
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
            [128, 512, 4096, usize::MAX]
        );
    }
}
