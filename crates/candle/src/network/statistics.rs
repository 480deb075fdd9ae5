//! The mean and the variance of a layer's values: of a pass over all ranks, and the running statistics.

use candle_core::{Result, Tensor, bail};

use super::channels::{distances, repeated};
use crate::values::{visit, with_values};

const EPSILON: f64 = 1e-5;
/// The weight of a pass in the running statistics.
const MOMENTUM: f64 = 0.1;

/// The running statistics of a layer, which are buffers of the model.
#[derive(Debug)]
pub(super) struct Statistics {
    pub(super) name: String,
    pub(super) channels: usize,
    pub(super) mean: Tensor,
    pub(super) variance: Tensor,
}

/// The statistics of a pass over all ranks, by channel.
#[derive(Debug)]
pub(super) struct Moments {
    pub(super) count: f64,
    pub(super) mean: Vec<f64>,
    /// The reciprocals of the standard deviations.
    pub(super) inverse: Vec<f64>,
}

impl Moments {
    pub(super) fn narrow_mean(&self) -> Vec<f32> {
        narrow(self.mean.iter().copied())
    }

    pub(super) fn scale(&self, weight: &[f32]) -> Vec<f32> {
        narrow(weight.iter().zip(&self.inverse).map(|(&weight, inverse)| f64::from(weight) * inverse))
    }
}

pub(super) fn narrow(values: impl Iterator<Item = f64>) -> Vec<f32> {
    values.map(|value| value as f32).collect()
}

fn inverse(variance: &[f64]) -> Vec<f64> {
    variance.iter().map(|variance| (variance + EPSILON).sqrt().recip()).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

impl Statistics {
    /// Returns the maximum number of values that this layer sums over ranks.
    pub(super) fn sums(&self) -> usize {
        1 + 2 * self.channels
    }

    /// Returns the number of values per channel and, for each channel, the sum of distances from the running mean, and the sum of their squares.
    ///
    /// All ranks have the same running mean, and it is near the mean. Computing the variance as a difference of squares therefore loses almost no
    /// precision in `f64`, even far from zero.
    pub(super) fn local(&self, x: &[f32]) -> Result<Vec<f64>> {
        let count = (x.len() / self.channels) as f64;
        let near = with_values(&self.mean, |near| repeated(&wide(near)))?;
        let [first, second] = distances(self.channels, x, &near);
        Ok([&[count], &*first, &*second].concat())
    }

    /// Adds the statistics of a pass, given its [sums](Self::local) over all ranks, to the running ones, and returns its moments. One value has no
    /// variance: a pass with it gets the running statistics.
    pub(super) fn moments(&self, sums: &[f64]) -> Result<Moments> {
        let count = sums[0];
        if count < 2.0 {
            // An epoch may end with a single sample.
            if self.has_passed()? {
                return self.running();
            }
            bail!(
                "{} is given {count} values per channel over all ranks in its first pass: a variance needs at least 2",
                self.name
            );
        }
        let (first, second) = sums[1..self.sums()].split_at(self.channels);
        let from_near: Vec<f64> = first.iter().map(|sum| sum / count).collect();
        let variance: Vec<f64> = second
            .iter()
            .zip(first)
            // `max` would hide a NaN.
            .map(|(second, first)| (second - first * first / count) / count)
            .map(|variance| if variance < 0.0 { 0.0 } else { variance })
            .collect();
        let mut mean = vec![0.0; self.channels];
        visit(&self.mean, &mut |running| {
            for ((running, from_near), mean) in running.iter_mut().zip(&from_near).zip(&mut mean) {
                *mean = f64::from(*running) + from_near;
                *running = (f64::from(*running) + MOMENTUM * from_near) as f32;
            }
        })?;
        visit(&self.variance, &mut |running| {
            for (running, variance) in running.iter_mut().zip(&variance) {
                let unbiased = variance * count / (count - 1.0);
                *running = ((1.0 - MOMENTUM) * f64::from(*running) + MOMENTUM * unbiased) as f32;
            }
        })?;
        Ok(Moments { count, mean, inverse: inverse(&variance) })
    }

    /// Returns whether the running statistics are those of a pass.
    fn has_passed(&self) -> Result<bool> {
        let differs =
            |tensor, initial| with_values(tensor, |values| values.iter().any(|&value| value != initial));
        Ok(differs(&self.mean, 0.0)? || differs(&self.variance, 1.0)?)
    }

    /// Returns the running statistics as moments. Their count is infinite, so that a single value does not change them.
    pub(super) fn running(&self) -> Result<Moments> {
        let [mean, variance] = [&self.mean, &self.variance].map(|running| with_values(running, wide));
        Ok(Moments { count: f64::INFINITY, mean: mean?, inverse: inverse(&variance?) })
    }
}
