//! Fits lines to measured times.

use unisono_collectives::model::{InvalidLink, Link, Range};

/// A sequence of messages of one size, or a single pass over parts of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) size_bytes: usize,
    pub(super) time_us: f64,
    pub(super) messages: usize,
    /// The number of times that the bytes of a message are copied.
    pub(super) moved: usize,
    /// The number of times that the bytes of a message are reduced.
    pub(super) reduced: usize,
}

impl Sample {
    fn predicted_us(&self, link: &Link) -> f64 {
        let latency_us = link.latency_us(self.size_bytes);
        let bytes_us = |reduces| link.time_us(self.size_bytes, reduces) - latency_us;
        self.sum_us([latency_us, bytes_us(false), bytes_us(true)])
    }

    fn sum_us(&self, [latency_us, moved_us, reduced_us]: [f64; 3]) -> f64 {
        let Self { messages, moved, reduced, .. } = *self;
        messages as f64 * latency_us + moved as f64 * moved_us + reduced as f64 * reduced_us
    }
}

/// The upper bounds of all ranges but the last. Messages within a range use the same code of the transports and fit the same caches.
const BOUNDS: [usize; 9] = [128, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 16 << 20];

/// Returns the link that fits the samples best, range by range.
///
/// A range is fitted to the samples between its bounds, inclusive. Samples beyond the largest bound belong to the last range that has any.
pub(super) fn link(samples: &[Sample]) -> Result<Link, InvalidLink> {
    let mut ranges = Vec::new();
    let mut from = 0;
    for up_to_bytes in BOUNDS.into_iter().chain([usize::MAX]) {
        let is_inside = |sample: &&Sample| (from..=up_to_bytes).contains(&sample.size_bytes);
        let inside: Vec<_> = samples.iter().filter(is_inside).copied().collect();
        // A sample at a bound belongs to both adjacent ranges, so that they meet there. It does not suffice for a range of its own.
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

/// The errors of predicted times, relative to measured times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Off {
    /// The median over all samples, in percent of the measured time.
    pub typical_percent: f64,
    /// The largest error.
    pub worst_percent: f64,
    /// The size with the largest error.
    pub worst_at_bytes: usize,
}

pub(super) fn errors(link: &Link, samples: &[Sample]) -> Off {
    let percent = |sample: &Sample| {
        (100.0 * (sample.predicted_us(link) / sample.time_us - 1.0).abs(), sample.size_bytes)
    };
    let mut percents: Vec<_> = samples.iter().map(percent).collect();
    percents.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (worst_percent, worst_at_bytes) = percents[percents.len() - 1];
    Off { typical_percent: percents[percents.len() / 2].0, worst_percent, worst_at_bytes }
}

/// Larger messages spend most of their time on their bytes.
const SMALL_BYTES: usize = 256 << 10;
/// The largest latency in a range of large messages, as a share of the shortest time.
const LATENCY_SHARE: f64 = 0.25;
/// No memory is faster. A higher rate means that the samples do not determine it.
const MAX_GB_PER_S: f64 = 999.0;

/// Fits a line α + n/rate to moved messages and one to reduced messages, with the same α. It minimises the sum of squares of the relative
/// errors, with α at least 0 and times that do not fall with the size.
fn range(up_to_bytes: usize, samples: &[Sample]) -> Range {
    let error = |alpha_us: f64| {
        let slopes = slopes(samples, alpha_us);
        samples.iter().map(|sample| relative_error(sample, alpha_us, slopes).powi(2)).sum::<f64>()
    };
    // Two samples determine a line, whose value at size 0 may be anything. But only a small message spends most of its time before its first
    // byte arrives.
    let (least_us, largest) = samples.iter().fold((f64::INFINITY, 0), |(least_us, largest), sample| {
        let message_us = sample.time_us / sample.messages as f64;
        (message_us.min(least_us), sample.size_bytes.max(largest))
    });
    let alpha_us = minimizer(error, if largest > SMALL_BYTES { LATENCY_SHARE * least_us } else { least_us });
    let [move_gb_per_s, reduce_gb_per_s] =
        slopes(samples, alpha_us).map(|slope| rounded(1.0 / (slope * 1e3)));
    Range { up_to_bytes, alpha_us: rounded(alpha_us), move_gb_per_s, reduce_gb_per_s }
}

fn relative_error(sample: &Sample, alpha_us: f64, slopes: [f64; 2]) -> f64 {
    let [moved_us, reduced_us] = slopes.map(|slope| sample.size_bytes as f64 * slope);
    sample.sum_us([alpha_us, moved_us, reduced_us]) / sample.time_us - 1.0
}

/// Returns the best slopes for an α: the microseconds per moved byte and per reduced byte. A kind without samples has the slope of the other.
fn slopes(samples: &[Sample], alpha_us: f64) -> [f64; 2] {
    let (mut products, mut sides) = ([[0.0; 2]; 2], [0.0; 2]);
    for sample in samples {
        let Sample { moved, reduced, .. } = *sample;
        let row = [moved, reduced].map(|times| (times * sample.size_bytes) as f64 / sample.time_us);
        let left = -relative_error(sample, alpha_us, [0.0; 2]);
        for (one, x) in row.into_iter().enumerate() {
            sides[one] += x * left;
            row.into_iter().enumerate().for_each(|(other, y)| products[one][other] += x * y);
        }
    }
    let [[moved, both], [_, reduced]] = products;
    let least = 1.0 / (MAX_GB_PER_S * 1e3);
    // The best slope of one kind, given the slope of the other.
    let best = |kind: usize, other: f64| ((sides[kind] - both * other) / products[kind][kind]).max(least);
    if moved == 0.0 {
        return [best(1, 0.0); 2];
    }
    if reduced == 0.0 {
        return [best(0, 0.0); 2];
    }
    let determinant = moved * reduced - both * both;
    // (NaN if the samples do not distinguish the kinds.)
    let free = (sides[0] * reduced - sides[1] * both) / determinant;
    let of_reduced = best(1, free.max(least));
    [best(0, of_reduced), of_reduced]
}

/// Returns the position between 0 and `most` of the minimum of a function that falls and then rises, by ternary search.
pub(super) fn minimizer(function: impl Fn(f64) -> f64, most: f64) -> f64 {
    let (mut from, mut to) = (0.0, most);
    for _ in 0..100 {
        let (one, other) = (from + (to - from) / 3.0, to - (to - from) / 3.0);
        if function(one) <= function(other) { to = other } else { from = one }
    }
    from
}

/// Rounds to the number of digits in a tuning file.
fn rounded(value: f64) -> f64 {
    let scale = if value < 10.0 { 1000.0 } else { 10.0 };
    ((value * scale).round() / scale).max(if value > 0.0 { 1e-3 } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns samples of reduced messages, and of as many moved as reduced ones.
    fn samples(time_us: impl Fn(usize, bool) -> f64) -> Vec<Sample> {
        let sizes = (3..=23).map(|shift| 1 << shift);
        let both = |size_bytes| {
            let [moved_us, reduced_us] = [false, true].map(|reduces| time_us(size_bytes, reduces));
            [
                Sample { size_bytes, time_us: 3.0 * reduced_us, messages: 3, moved: 0, reduced: 3 },
                Sample {
                    size_bytes,
                    time_us: 2.0 * (moved_us + reduced_us),
                    messages: 4,
                    moved: 2,
                    reduced: 2,
                },
            ]
        };
        sizes.flat_map(both).collect()
    }

    #[test]
    fn exact_link_is_recovered() {
        let time_us = |size: usize, reduces| 2.0 + size as f64 / if reduces { 4e3 } else { 8e3 };
        let samples = samples(time_us);
        let link = link(&samples).unwrap();
        assert_eq!(link.ranges().len(), 8);
        assert!(errors(&link, &samples).worst_percent < 1.0, "{link:?}");
        for range in &link.ranges()[3..6] {
            let Range { alpha_us, move_gb_per_s, reduce_gb_per_s, .. } = *range;
            assert!((alpha_us - 2.0).abs() < 0.1 && (move_gb_per_s - 8.0).abs() < 0.1, "{range:?}");
            assert!((reduce_gb_per_s - 4.0).abs() < 0.1, "{range:?}");
        }
    }

    #[test]
    fn unusual_times_give_a_valid_link() {
        // Times that fall, and times through the origin.
        let falling = samples(|size, _| 10.0 - (size as f64).log2() / 10.0);
        let steep = samples(|size, _| size as f64 / 1e3);
        for samples in [falling, steep] {
            let link = link(&samples).unwrap();
            assert!(link.ranges().iter().all(|range| range.alpha_us >= 0.0));
        }
    }

    #[test]
    fn few_sizes_give_fewer_ranges() {
        let samples: Vec<_> =
            samples(|size, _| 1.0 + size as f64).into_iter().filter(|s| s.size_bytes <= 8192).collect();
        let link = link(&samples).unwrap();
        assert_eq!(
            link.ranges().iter().map(|range| range.up_to_bytes).collect::<Vec<_>>(),
            [128, 512, 4096, usize::MAX]
        );
    }
}
