//! What a rank has to do in a step, wherever its gradients are, and what it is told of it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::buckets::Sums;
use crate::replica::Tally;

/// What one rank has to do in a step.
#[derive(Debug, Clone, Copy)]
pub struct Share<'a, B> {
    /// Its micro-batches; `None` for one that is empty. None at all if it has nothing to do but to take part.
    pub passes: &'a [Option<B>],
    /// Whether it has no more data.
    pub is_out_of_data: bool,
    /// Whether it was asked to stop: all ranks learn in [`Sums::ranks_to_stop`] how many were.
    pub asks_to_stop: bool,
}

impl<'a, B> Share<'a, B> {
    /// The share of a rank that has data and goes on.
    pub fn of(passes: &'a [Option<B>]) -> Self {
        Self { passes, is_out_of_data: false, asks_to_stop: false }
    }
}

/// How a step went.
#[derive(Debug, Clone, Default)]
pub struct StepReport {
    /// What all ranks added up. If all or, by the trainer's policy, some ranks were out of data, nothing was updated.
    pub sums: Sums,
    /// What this rank added up by itself.
    pub own: Tally,
    /// The norm of the mean gradient, if it was asked for by clipping.
    pub norm: Option<f64>,
    /// Where the time went on this rank.
    pub times: Times,
    /// Names of parameters that had no gradient and counted as zero, each the first time that it happens.
    pub without_gradient: Vec<String>,
}

/// Where the time of steps went on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Waiting for the input pipeline.
    pub input: Duration,
    /// Forward and backward passes.
    pub compute: Duration,
    /// All-reduces that went on while the rank computed.
    pub hidden: Duration,
    /// All-reduces that the rank waited for.
    pub exposed: Duration,
    /// Clipping and updating.
    pub update: Duration,
}

impl std::ops::AddAssign for Times {
    fn add_assign(&mut self, other: Self) {
        self.input += other.input;
        self.compute += other.compute;
        self.hidden += other.hidden;
        self.exposed += other.exposed;
        self.update += other.update;
    }
}

/// The indices that are among those of all passes so far and of a further one.
pub(super) fn in_every_pass(so_far: Option<BTreeSet<usize>>, of_pass: Vec<usize>) -> Option<BTreeSet<usize>> {
    let of_pass: BTreeSet<_> = of_pass.into_iter().collect();
    Some(so_far.map_or_else(|| of_pass.clone(), |so_far| &so_far & &of_pass))
}
