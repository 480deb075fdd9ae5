//! The loops of a batch norm, over values whose last dimension is their channel.
//!
//! The constants of channels are [repeated] to fill vector registers. Sums are in `f64`, and do not depend on the number of threads.

use std::ops::Range;

use unisono::internals::{Level, Loop};

use super::blocks::{self, BLOCK};
use super::rows::Relu;
use crate::values::Backward;

const LEAST: usize = 64;

pub(super) fn repeated<T: Copy>(of_channels: &[T]) -> Vec<T> {
    of_channels.repeat(LEAST.div_ceil(of_channels.len().max(1)))
}

/// Returns the number of values of a block, a multiple of `repeated`.
fn block(repeated: usize) -> usize {
    (BLOCK / repeated).max(1) * repeated
}

/// For each channel, computes the sum of the distances of values from a number near their mean, and the sum of the squares of the distances.
pub(super) fn distances(channels: usize, x: &[f32], near: &[f64]) -> [Vec<f64>; 2] {
    sums((channels, near.len(), x.len()), |range, sums| Level::best().run(Distances(&x[range], near, sums)))
}

/// Scales distances from the mean, adds a bias, and applies the ReLU if there is one.
pub(super) fn normalize(x: &[f32], affine: Affine<'_>, has_relu: bool, y: &mut [f32]) {
    each(affine.mean.len(), y, |range, y| match has_relu {
        true => Level::best().run(Normalize::<true>(&x[range], affine, y)),
        false => Level::best().run(Normalize::<false>(&x[range], affine, y)),
    });
}

/// For each channel, computes the sum of the derivatives before the ReLU, and the sum of their products with the distances from the mean.
pub(super) fn products(channels: usize, all: Backward<'_>, mean: &[f64], has_relu: bool) -> [Vec<f64>; 2] {
    sums((channels, mean.len(), all[0].len()), |range, sums| {
        let all = all.map(|values| &values[range.clone()]);
        match has_relu {
            true => Level::best().run(Products::<true>(all, mean, sums)),
            false => Level::best().run(Products::<false>(all, mean, sums)),
        }
    })
}

pub(super) fn differentiate(all: Backward<'_>, moved: Moved<'_>, has_relu: bool, dx: &mut [f32]) {
    each(moved.mean.len(), dx, |range, dx| {
        let all = all.map(|values| &values[range.clone()]);
        match has_relu {
            true => Level::best().run(Derivative::<true>(all, moved, dx)),
            false => Level::best().run(Derivative::<false>(all, moved, dx)),
        }
    });
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Affine<'a> {
    pub(super) mean: &'a [f32],
    pub(super) scale: &'a [f32],
    pub(super) bias: &'a [f32],
}

/// The constants of [`differentiate`], which computes `scale (dy - offset - slope (x - mean))`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved<'a> {
    pub(super) mean: &'a [f32],
    pub(super) scale: &'a [f32],
    pub(super) offset: &'a [f32],
    pub(super) slope: &'a [f32],
}

/// Returns two sums per channel, which `add` computes from each block of `count` values.
fn sums(
    (channels, repeated, count): (usize, usize, usize),
    add: impl Fn(Range<usize>, &mut [f64]) + Send + Sync,
) -> [Vec<f64>; 2] {
    let block = block(repeated);
    let parts = blocks::map(0..count.div_ceil(block), |at| {
        let mut sums = vec![0.0; 2 * repeated];
        add(at * block..count.min((at + 1) * block), &mut sums);
        sums
    });
    let mut total = [vec![0.0; channels], vec![0.0; channels]];
    for part in parts {
        for (total, part) in total.iter_mut().zip(part.chunks_exact(repeated)) {
            for of_channels in part.chunks_exact(channels) {
                total.iter_mut().zip(of_channels).for_each(|(total, sum)| *total += sum);
            }
        }
    }
    total
}

/// Computes `target` block by block.
fn each(repeated: usize, target: &mut [f32], compute: impl Fn(Range<usize>, &mut [f32]) + Send + Sync) {
    let block = block(repeated);
    blocks::map(target.chunks_mut(block).enumerate(), |(at, target)| {
        compute(at * block..at * block + target.len(), target);
    });
}

/// The values, the numbers near the means, and the two sums of each channel.
struct Distances<'a>(&'a [f32], &'a [f64], &'a mut [f64]);

impl Loop for Distances<'_> {
    #[inline(always)]
    fn run(self) {
        let Self(x, near, sums) = self;
        let (first, second) = sums.split_at_mut(near.len());
        for row in x.chunks(near.len()) {
            for (((x, near), first), second) in row.iter().zip(near).zip(&mut *first).zip(&mut *second) {
                let distance = f64::from(*x) - near;
                *first += distance;
                *second += distance * distance;
            }
        }
    }
}

struct Normalize<'a, const RELU: bool>(&'a [f32], Affine<'a>, &'a mut [f32]);

impl<const RELU: bool> Loop for Normalize<'_, RELU> {
    #[inline(always)]
    fn run(self) {
        let Self(x, Affine { mean, scale, bias }, y) = self;
        for (x, y) in x.chunks(mean.len()).zip(y.chunks_mut(mean.len())) {
            let constants = mean.iter().zip(scale).zip(bias);
            for ((y, x), ((mean, scale), bias)) in y.iter_mut().zip(x).zip(constants) {
                let value = (x - mean) * scale + bias;
                *y = if RELU { Relu::of(value) } else { value };
            }
        }
    }
}

/// Returns the derivative before the ReLU, if there is one.
#[inline(always)]
fn masked<const RELU: bool>(y: f32, dy: f32) -> f32 {
    if RELU { Relu::derivative(y, dy) } else { dy }
}

/// The values, the means, and the two sums of each channel.
struct Products<'a, const RELU: bool>(Backward<'a>, &'a [f64], &'a mut [f64]);

impl<const RELU: bool> Loop for Products<'_, RELU> {
    #[inline(always)]
    fn run(self) {
        let Self([x, y, dy], mean, sums) = self;
        let length = mean.len();
        let (first, second) = sums.split_at_mut(length);
        for ((x, y), dy) in x.chunks(length).zip(y.chunks(length)).zip(dy.chunks(length)) {
            let of_channels = mean.iter().zip(&mut *first).zip(&mut *second);
            for (((x, y), dy), ((mean, first), second)) in x.iter().zip(y).zip(dy).zip(of_channels) {
                let dy = f64::from(masked::<RELU>(*y, *dy));
                *first += dy;
                *second += dy * (f64::from(*x) - mean);
            }
        }
    }
}

struct Derivative<'a, const RELU: bool>(Backward<'a>, Moved<'a>, &'a mut [f32]);

impl<const RELU: bool> Loop for Derivative<'_, RELU> {
    #[inline(always)]
    fn run(self) {
        let Self([x, y, dy], Moved { mean, scale, offset, slope }, dx) = self;
        let length = mean.len();
        let values = x.chunks(length).zip(y.chunks(length)).zip(dy.chunks(length));
        for (((x, y), dy), dx) in values.zip(dx.chunks_mut(length)) {
            let constants = mean.iter().zip(scale).zip(offset).zip(slope);
            let values = dx.iter_mut().zip(x).zip(y).zip(dy);
            for ((((dx, x), y), dy), (((mean, scale), offset), slope)) in values.zip(constants) {
                *dx = scale * (masked::<RELU>(*y, *dy) - offset - slope * (x - mean));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= 1e-5 * expected.abs().max(1.0)
    }

    /// The cases are one block and several, complete and incomplete, with few and with many channels.
    #[test]
    fn loops_match_their_definitions() {
        for (channels, rows) in [(1, 5), (3, 20_000), (16, 2_049), (70, 700)] {
            let numbers = |step: usize| -> Vec<f32> {
                (0..channels * rows).map(|at| (at * step % 1009) as f32 / 500.0 - 1.0).collect()
            };
            let constants = |step: usize| numbers(step)[..channels].to_vec();
            let (x, dy) = (numbers(37), numbers(53));
            let [mean, scale, bias, slope] = [11, 13, 17, 19].map(constants);
            let [means, scales, biases, slopes] = [&mean, &scale, &bias, &slope].map(|all| repeated(all));
            let wide: Vec<f64> = mean.iter().copied().map(f64::from).collect();
            for has_relu in [false, true] {
                let mut y = vec![f32::NAN; x.len()];
                let affine = Affine { mean: &means, scale: &scales, bias: &biases };
                normalize(&x, affine, has_relu, &mut y);
                let mut dx = vec![f32::NAN; x.len()];
                let moved = Moved { mean: &means, scale: &scales, offset: &biases, slope: &slopes };
                differentiate([&x, &y, &dy], moved, has_relu, &mut dx);
                let mut sums = [vec![0.0; channels], vec![0.0; channels]];
                for at in 0..x.len() {
                    let channel = at % channels;
                    let distance = f64::from(x[at]) - wide[channel];
                    let affine = distance * f64::from(scale[channel]) + f64::from(bias[channel]);
                    assert!(close(f64::from(y[at]), if has_relu { affine.max(0.0) } else { affine }));
                    let dy = if has_relu && y[at] == 0.0 { 0.0 } else { f64::from(dy[at]) };
                    let moved = dy - f64::from(bias[channel]) - f64::from(slope[channel]) * distance;
                    assert!(close(f64::from(dx[at]), f64::from(scale[channel]) * moved));
                    sums[0][channel] += dy;
                    sums[1][channel] += dy * distance;
                }
                let found = products(channels, [&x, &y, &dy], &repeated(&wide), has_relu);
                assert!(found.iter().flatten().zip(sums.iter().flatten()).all(|(&a, &b)| close(a, b)));
            }
            let mut sums = [vec![0.0; channels], vec![0.0; channels]];
            for (at, &x) in x.iter().enumerate() {
                let distance = f64::from(x) - wide[at % channels];
                sums[0][at % channels] += distance;
                sums[1][at % channels] += distance * distance;
            }
            let found = distances(channels, &x, &repeated(&wide));
            assert!(found.iter().flatten().zip(sums.iter().flatten()).all(|(&a, &b)| close(a, b)));
        }
    }
}
