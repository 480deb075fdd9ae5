//! Axes: the positions of values, and the labelled values.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

#[derive(Debug, Clone)]
pub(super) struct Axis {
    range: Range<f64>,
    logarithmic: bool,
    ticks: Vec<f64>,
    label: fn(f64) -> String,
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, &value: &f64, (from, to): (i32, i32)) -> i32 {
        let Range { start, end } = self.range;
        let share = if self.logarithmic {
            (value / start).ln() / (end / start).ln()
        } else {
            (value - start) / (end - start)
        };
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, &value: &f64) -> String {
        (self.label)(value)
    }
}

const MOST_TICKS: usize = 7;

impl Axis {
    /// Returns a logarithmic axis for array sizes. Labels are evenly spaced down from the largest size, a power of two apart.
    pub(super) fn sizes(bytes: impl Iterator<Item = f64> + Clone) -> Self {
        let (least, most) = ends(bytes);
        let doublings = (most / least).log2().floor() as usize;
        let step = (doublings / MOST_TICKS) + 1;
        let halvings = (0..=doublings).step_by(step).map(|halvings| most / (halvings as f64).exp2());
        let mut sizes: Vec<_> = halvings.collect();
        sizes.reverse();
        Self::logarithmic(least, most, sizes, size)
    }

    /// Returns a logarithmic axis for times, with labels at powers of ten, or more if there are few.
    pub(super) fn times(us: impl Iterator<Item = f64> + Clone) -> Self {
        let (least, most) = ends(us);
        let among = |digits: &[f64]| {
            let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
            let ticks = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
            ticks.filter(|&tick| least <= tick && tick <= most).collect::<Vec<_>>()
        };
        let digits: [&[f64]; 3] = [&[1.0], &[1.0, 2.0, 5.0], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]];
        let ticks = digits.into_iter().map(among).find(|ticks| ticks.len() > 2).unwrap_or_else(|| {
            let mut ends = vec![least, most];
            ends.dedup_by_key(|end| decimal(*end));
            ends
        });
        Self::logarithmic(least, most, ticks, decimal)
    }

    /// Returns a linear axis for bandwidths, from 0.
    pub(super) fn bandwidths(gb_per_s: impl Iterator<Item = f64> + Clone) -> Self {
        let (_, most) = ends(gb_per_s);
        let most = if most > 0.0 { most } else { 1.0 };
        let unit = 10_f64.powf(most.log10().floor());
        let steps = [0.1, 0.2, 0.5, 1.0, 2.0].map(|step| step * unit);
        let step = steps.into_iter().find(|step| most / step < MOST_TICKS as f64).unwrap_or(unit);
        let ticks = (0..=(most * 1.04 / step) as usize).map(|index| index as f64 * step);
        Self { range: 0.0..most * 1.05, logarithmic: false, ticks: ticks.collect(), label: decimal }
    }

    fn logarithmic(least: f64, most: f64, mut ticks: Vec<f64>, label: fn(f64) -> String) -> Self {
        // Leaves a margin at both ends for markers, and for a range of one value.
        let room = 1.08 * (most / least).powf(0.03);
        let range = least / room..most * room;
        ticks.retain(|tick| range.contains(tick));
        Self { range, logarithmic: true, ticks, label }
    }
}

fn ends(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max))
}

/// Formats a size: `8 B`, `4 KiB`, `1.5 MiB`.
fn size(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = ((bytes.log2() / 10.0) as usize).min(units.len() - 1);
    let value = bytes / 1024_f64.powi(power as i32);
    format!("{} {}", (value * 100.0).round() / 100.0, units[power])
}

/// Formats three significant digits, or all digits of a whole number, with thousands separated.
fn decimal(value: f64) -> String {
    let digits = if value > 0.0 { (2.0 - value.log10().floor()).max(0.0) } else { 0.0 };
    let text = format!("{value:.*}", digits as usize);
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    if text.len() < 5 {
        return text;
    }
    let groups: Vec<_> = text.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|tick| axis.format_ext(tick)).collect()
    }

    #[test]
    fn sizes_are_labelled_evenly() {
        let axis = Axis::sizes([8.0, 67_108_864.0].into_iter());
        assert_eq!(labels(&axis), ["64 B", "1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB"]);
        let axis = Axis::sizes([3.0 * 1024.0, 100.0 * 1024.0 * 1024.0].into_iter());
        assert_eq!(
            labels(&axis).last().map(String::as_str),
            Some("100 MiB"),
            "the largest is no power of two"
        );
        assert!(labels(&axis).len() <= MOST_TICKS, "{:?}", labels(&axis));
        assert_eq!(labels(&Axis::sizes([1536.0].into_iter())), ["1.5 KiB"]);
    }

    #[test]
    fn times_are_labelled_by_decades_or_finer() {
        assert_eq!(labels(&Axis::times([0.4, 12_000.0].into_iter())), ["1", "10", "100", "1000", "10 000"]);
        assert_eq!(labels(&Axis::times([3.0, 60.0].into_iter())), ["5", "10", "20", "50"]);
        assert_eq!(labels(&Axis::times([3.0, 5.5].into_iter())), ["3", "4", "5"]);
        assert_eq!(labels(&Axis::times([3.123, 3.456].into_iter())), ["3.12", "3.46"]);
        assert_eq!(labels(&Axis::times([12_345.6].into_iter())), ["12 346"]);
    }

    #[test]
    fn bandwidths_begin_at_zero() {
        let axis = Axis::bandwidths([0.01, 17.0].into_iter());
        assert_eq!(labels(&axis), ["0", "5", "10", "15"]);
        assert_eq!((axis.map(&0.0, (600, 100)), axis.map(&17.0, (600, 100))), (600, 124));
        let axis = Axis::bandwidths([0.3].into_iter());
        assert_eq!(labels(&axis), ["0", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"]);
        assert_eq!(labels(&Axis::bandwidths([0.0].into_iter()))[0], "0");
    }
}
