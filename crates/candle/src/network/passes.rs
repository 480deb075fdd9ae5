//! State shared by layers that behave differently in training and in evaluation: the communicator of a [`SyncBatchNorm`](super::SyncBatchNorm), and
//! the number of the pass for a [`Dropout`](super::Dropout).
//!
//! Every exchange is one all-reduce of the same size, independent of its layer, and contains its layer and direction. A rank without samples can
//! therefore take part without knowing the order of the layers, and ranks at different layers detect the mismatch.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use unisono::{Choice, Communicator, ReduceOp};

use super::statistics::Statistics;
use crate::values::overwrite;

/// The values before the sums of an exchange: the number of ranks that have samples, and the sum and the sum of squares of the exchange identifiers
/// that they send.
const HEADER: usize = 3;
/// The number of steps that one number of the buffer counts before the next one increments. It is exact as `f32`.
const STEPS_PER_NUMBER: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

#[derive(Debug, Default)]
pub(super) struct Passes {
    /// A separate communicator, so that all-reduces of buckets may be in flight. `None` with one rank.
    comm: Option<Communicator>,
    layers: Vec<Layer>,
    /// The number of layers that drop values.
    pub(super) dropouts: u64,
    /// The number of started steps, as a buffer of the model. Only present if a layer drops values.
    pub(super) steps: Option<Tensor>,
    /// The step, and the number of the pass in it, which differs between ranks.
    pub(super) step: u64,
    pub(super) pass: u64,
}

/// A layer that normalises.
#[derive(Debug)]
struct Layer {
    statistics: Arc<Statistics>,
    /// The exchanges of this pass: forward and backward.
    exchanged: [bool; 2],
}

impl Passes {
    pub(super) fn add_layer(&mut self, statistics: Arc<Statistics>) -> usize {
        self.layers.push(Layer { statistics, exchanged: [false; 2] });
        self.layers.len() - 1
    }

    pub(super) fn synchronizes(&self) -> bool {
        !self.layers.is_empty()
    }

    /// Creates the separate communicator. Called by all ranks.
    pub(super) fn connect(&mut self, comm: &mut Communicator) -> unisono::Result<()> {
        if !self.synchronizes() || comm.ranks() == 1 {
            return Ok(());
        }
        let mut own = comm.split(Some(0), 0)?.expect("every rank has a color");
        own.set_choice(Choice::Auto)?;
        self.comm = Some(own);
        Ok(())
    }

    /// Begins a step of this many passes, numbered from `first`. Returns the number of passes that this rank makes: the maximum over all ranks if
    /// layers communicate.
    pub(super) fn begin_step(&mut self, first: u64, passes: usize) -> Result<usize> {
        if let Some(steps) = &self.steps {
            // As tensors, because they are on the device of the model, and a loop cannot access the memory of a GPU.
            let numbers = steps.to_vec1::<f32>()?;
            self.step = numbers[0] as u64 + STEPS_PER_NUMBER * numbers[1] as u64;
            let next = self.step + 1;
            let numbers = [(next % STEPS_PER_NUMBER) as f32, (next / STEPS_PER_NUMBER) as f32];
            overwrite(steps, &Tensor::new(&numbers, steps.device())?)?;
        }
        self.pass = first;
        let mut most = [passes as u64];
        if let Some(comm) = &mut self.comm {
            comm.all_reduce(&mut most, ReduceOp::Max).map_err(candle_core::Error::wrap)?;
        }
        Ok(most[0] as usize)
    }

    pub(super) fn begin(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.exchanged = [false; 2]);
    }

    /// Ends a pass. Refuses one that skipped a layer: a rank without samples would wait for it.
    pub(super) fn end(&mut self) -> Result<()> {
        self.pass += 1;
        let left_out = self.layers.iter().position(|layer| layer.exchanged != [true; 2]);
        match left_out.filter(|_| self.comm.is_some()) {
            None => Ok(()),
            Some(layer) => bail!(
                "the loss of a pass does not depend on {}: a layer that normalises over all ranks is used once in every pass",
                self.layers[layer].statistics.name
            ),
        }
    }

    /// Reports to the other ranks that this one has failed, so that none waits for it.
    pub(super) fn fail(&mut self, why: &str) {
        if let Some(comm) = &mut self.comm {
            comm.fail(why);
        }
    }

    /// Sums `own` over all ranks in place. Refuses a layer that was already used in this pass, and ranks at different layers.
    pub(super) fn sum(&mut self, layer: usize, direction: Direction, own: &mut [f64]) -> Result<()> {
        let done = &mut self.layers[layer].exchanged[direction as usize];
        if std::mem::replace(done, true) {
            bail!(
                "{} is used twice in a pass: make a layer for each use, since each has its own statistics",
                self.layers[layer].statistics.name
            );
        }
        let Some(mut sums) = self.exchange(Some((layer, direction)), own)? else { return Ok(()) };
        own.copy_from_slice(&sums.split_off(HEADER)[..own.len()]);
        Ok(())
    }

    /// Takes part in a pass for which this rank has no samples: adds nothing to the sums of the other ranks, and updates the running statistics as
    /// they do.
    pub(super) fn without_samples(&mut self) -> Result<()> {
        self.pass += 1;
        for _ in 0..2 * self.layers.len() {
            let Some(sums) = self.exchange(None, &[])? else { return Ok(()) };
            if sums[0] == 0.0 {
                // No rank has samples.
                return Ok(());
            }
            let named = (sums[1] / sums[0]) as usize;
            if named % 2 == Direction::Forward as usize {
                self.layers[named / 2].statistics.moments(&sums[HEADER..])?;
            }
        }
        Ok(())
    }

    /// Returns the sums over all ranks, with their header; `None` with one rank.
    fn exchange(&mut self, at: Option<(usize, Direction)>, own: &[f64]) -> Result<Option<Vec<f64>>> {
        let Some(comm) = &mut self.comm else { return Ok(None) };
        let widest = self.layers.iter().map(|layer| layer.statistics.sums()).max().unwrap_or(0);
        let mut sums = vec![0.0; HEADER + widest];
        if let Some((layer, direction)) = at {
            let named = (2 * layer + direction as usize) as f64;
            sums[..HEADER].copy_from_slice(&[1.0, named, named * named]);
            sums[HEADER..][..own.len()].copy_from_slice(own);
        }
        comm.all_reduce(&mut sums, ReduceOp::Sum).map_err(candle_core::Error::wrap)?;
        // Equality in the Cauchy-Schwarz inequality: all ranks send the same identifier.
        if sums[0] * sums[2] != sums[1] * sums[1] {
            let own = at.map_or_else(
                || "no samples".to_owned(),
                |(layer, direction)| {
                    format!("the {direction:?} pass of {}", self.layers[layer].statistics.name)
                },
            );
            bail!(
                "rank {} is at {own}, and {} ranks with samples are not all there: all ranks must use the layers that normalise over \
                 all ranks in the same order",
                comm.rank(),
                sums[0]
            );
        }
        Ok(Some(sums))
    }
}
