//! The normalisation of 8-bit levels.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// Mean and standard deviation of MNIST's grey levels in 0..=1: the customary normalisation of digits.
pub(crate) const GREY: (f32, f32) = (0.1307, 0.3081);

/// The means and standard deviations of levels from 0 to 1, by which images are normalised. Checkpoints store them, so that a model gets inputs with
/// the normalisation of its training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Normalization {
    /// The mean of each channel, or one for all channels.
    pub mean: Vec<f32>,
    /// The standard deviation of each channel, or one for all channels.
    pub deviation: Vec<f32>,
}

/// The normalisation of MNIST.
impl Default for Normalization {
    fn default() -> Self {
        Self { mean: vec![GREY.0], deviation: vec![GREY.1] }
    }
}

/// The origin of the statistics by which images are normalised.
#[derive(Debug, Clone, PartialEq)]
pub enum Normalize {
    /// Given statistics, written as `0.5/0.25`, or `0.485,0.456,0.406/0.229,0.224,0.225` with one for each channel.
    By(Normalization),
    /// Statistics of the training images without augmentation: of all, or of 1000 evenly spaced ones if there are more. Written as `measured`.
    Measured,
}

impl Normalize {
    /// Returns the statistics for images with this many channels, if any were requested.
    pub(crate) fn resolved(
        asked: Option<&Self>,
        channels: usize,
        sums: impl FnOnce() -> Result<Sums, DataError>,
    ) -> Result<Option<Normalization>, DataError> {
        Ok(match asked {
            None => None,
            Some(Self::By(given)) => given.check(channels).map(|()| Some(given.clone()))?,
            Some(Self::Measured) => Some(sums()?.normalization(channels)),
        })
    }
}

/// Sums over levels, which do not depend on the order of images.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    count: u64,
    levels: [u64; 3],
    squares: [u64; 3],
}

impl Sums {
    /// Returns the sums of an image of one channel or three.
    pub(crate) fn of(levels: &[u8], channels: usize) -> Self {
        let mut sums = Self { count: (levels.len() / channels) as u64, ..Self::default() };
        for pixel in levels.chunks_exact(channels) {
            for (channel, &level) in pixel.iter().enumerate() {
                sums.levels[channel] += u64::from(level);
                sums.squares[channel] += u64::from(level) * u64::from(level);
            }
        }
        sums
    }

    pub(crate) fn and(self, other: Self) -> Self {
        let both = |own: [u64; 3], other: [u64; 3]| [0, 1, 2].map(|channel| own[channel] + other[channel]);
        Self {
            count: self.count + other.count,
            levels: both(self.levels, other.levels),
            squares: both(self.squares, other.squares),
        }
    }

    pub(crate) fn normalization(self, channels: usize) -> Normalization {
        let of_all = |sums: [u64; 3], channel: usize| sums[channel] as f64 / self.count.max(1) as f64;
        let deviation = |channel| {
            let mean = of_all(self.levels, channel);
            let variance = (of_all(self.squares, channel) - mean * mean).max(0.0);
            // A constant channel carries no information, but other images may have other levels.
            if variance > 0.0 { (variance.sqrt() / 255.0) as f32 } else { 1.0 }
        };
        let mean = |channel| (of_all(self.levels, channel) / 255.0) as f32;
        Normalization {
            mean: (0..channels).map(mean).collect(),
            deviation: (0..channels).map(deviation).collect(),
        }
    }
}

impl Normalization {
    fn check(&self, channels: usize) -> Result<(), DataError> {
        let found = self.mean.len();
        if found == 1 || found == channels {
            return Ok(());
        }
        let expected = if channels == 1 { "1".to_owned() } else { format!("1 or {channels}") };
        Err(DataError::other(format!(
            "the normalisation `{self}` has {found} means, and the images have {channels} channels: expected {expected}"
        )))
    }

    /// Returns the normalised values of levels with interleaved channels.
    pub(crate) fn apply(&self, levels: &[u8]) -> Vec<f32> {
        let tables: Vec<[f32; 256]> = self.mean.iter().zip(&self.deviation).map(table).collect();
        let mut values = Vec::with_capacity(levels.len());
        match &tables[..] {
            [table] => values.extend(levels.iter().map(|&level| table[usize::from(level)])),
            tables => {
                for pixel in levels.chunks_exact(tables.len()) {
                    values.extend(pixel.iter().zip(tables).map(|(&level, table)| table[usize::from(level)]));
                }
            }
        }
        values
    }
}

fn table((mean, deviation): (&f32, &f32)) -> [f32; 256] {
    std::array::from_fn(|level| (level as f32 / 255.0 - mean) / deviation)
}

impl fmt::Display for Normalization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |numbers: &[f32]| numbers.iter().map(f32::to_string).collect::<Vec<_>>().join(",");
        write!(f, "{}/{}", list(&self.mean), list(&self.deviation))
    }
}

impl fmt::Display for Normalize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(normalization) => normalization.fmt(f),
            Self::Measured => f.write_str("measured"),
        }
    }
}

impl FromStr for Normalize {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        if text == "measured" {
            return Ok(Self::Measured);
        }
        let list =
            |text: &str| text.split(',').map(|number| number.parse().ok()).collect::<Option<Vec<f32>>>();
        let numbers = text.split_once('/').and_then(|(mean, deviation)| list(mean).zip(list(deviation)));
        let is_valid = |(mean, deviation): &(Vec<f32>, Vec<f32>)| {
            mean.len() == deviation.len()
                && mean.iter().all(|mean| mean.is_finite())
                && deviation.iter().all(|deviation| deviation.is_finite() && *deviation > 0.0)
        };
        let Some((mean, deviation)) = numbers.filter(is_valid) else {
            return Err(DataError::other(format!(
                "unknown normalisation `{text}`: expected `measured`, or means and deviations of levels from 0 to 1, such as \
                 `0.485,0.456,0.406/0.229,0.224,0.225`"
            )));
        };
        Ok(Self::By(Normalization { mean, deviation }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalisations_round_trip_through_text() {
        for text in ["0.1307/0.3081", "0.5,0,1/0.25,1,2", "measured"] {
            assert_eq!(text.parse::<Normalize>().unwrap().to_string(), text);
        }
        assert_eq!("measured".parse::<Normalize>().unwrap(), Normalize::Measured);
        for text in ["", "0.5", "0.5/0", "0.5/-1", "0.5,0.5/0.5", "NaN/1", "a/b"] {
            let message = text.parse::<Normalize>().unwrap_err().to_string();
            assert!(message.contains(&format!("unknown normalisation `{text}`")), "{message}");
        }
    }

    #[test]
    fn measured_statistics_normalise_channels_to_mean_0_and_deviation_1() {
        let images: Vec<Vec<u8>> =
            (0..5_u8).map(|image| (0..75).map(|at| (at % 3) * 40 + image * 9 + at).collect()).collect();
        let sums = images.iter().map(|levels| Sums::of(levels, 3)).reduce(Sums::and).unwrap();
        let values = sums.normalization(3).apply(&images.concat());
        for channel in 0..3 {
            let own: Vec<_> = values.chunks(3).map(|pixel| f64::from(pixel[channel])).collect();
            let mean = own.iter().sum::<f64>() / own.len() as f64;
            let square = own.iter().map(|value| value * value).sum::<f64>() / own.len() as f64;
            assert!(mean.abs() < 1e-6 && (square - 1.0).abs() < 1e-5, "{mean}, {square}");
        }
        let constant = Sums::of(&[7; 9], 1).normalization(1);
        assert_eq!(constant.apply(&[7]), [0.0]);
    }

    #[test]
    fn statistics_must_fit_the_channels() {
        let three = Normalization { mean: vec![0.0; 3], deviation: vec![1.0; 3] };
        assert!(three.check(3).is_ok() && Normalization::default().check(3).is_ok());
        let refused = three.check(1).unwrap_err().to_string();
        assert!(refused.contains("has 3 means, and the images have 1 channels: expected 1"), "{refused}");
    }
}
