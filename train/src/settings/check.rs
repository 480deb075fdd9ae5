//! Whether settings make sense, by themselves and for the data.

use std::fmt;

use candle_core::Device;

use super::{Falling, Settings};
use crate::buckets::{self, Wire};
use crate::error::TrainError;
use crate::model::ModelKind;
use crate::optimizer::OptimizerKind;
use unisono::{Choice, Vendor};
use unisono_data::Dataset;

impl Settings {
    /// Refuses what makes no sense whatever the data are, and what would have no effect.
    pub(super) fn check(&self) -> Result<(), TrainError> {
        self.check_counts()?;
        self.check_rates()?;
        self.check_effect()
    }

    fn check_counts(&self) -> Result<(), TrainError> {
        let positive = |name: &str, value: usize| match value {
            0 => refuse(format!("{name} is 0: it must be at least 1")),
            _ => Ok(()),
        };
        positive("the number of epochs", self.epochs)?;
        positive("the batch size", self.batch_size)?;
        positive("the global batch", self.global_batch.unwrap_or(1))?;
        positive("the reference batch", self.reference_batch)?;
        positive("the bytes of a bucket", self.bucket_bytes)?;
        positive("the context", self.context)?;
        positive("the size of a hidden layer", self.hidden.iter().flatten().copied().min().unwrap_or(1))?;
        let comparisons = self.verify_replicas_every.unwrap_or(1).min(self.straggler_every.unwrap_or(1));
        positive("the number of steps between comparisons", comparisons as usize)?;
        match self.schedule {
            Falling::Step { epochs, .. } => {
                positive("the number of epochs between falls of the learning rate", epochs)
            }
            Falling::Constant | Falling::Cosine => Ok(()),
        }
    }

    fn check_rates(&self) -> Result<(), TrainError> {
        Range::Above(0.0, 1e6).check("learning rate", self.learning_rate)?;
        Range::From(0.0, 1e6).check("weight decay", f64::from(self.optimizer.weight_decay))?;
        Range::From(0.0, 1.0).check("momentum", f64::from(self.optimizer.momentum))?;
        Range::Above(0.0, 1e30).check("norm to clip to", self.clip_norm.unwrap_or(1.0))?;
        Range::From(0.0, 1.0).check("share of warm-up", self.warm_up)?;
        match self.schedule {
            Falling::Step { factor, .. } => {
                Range::From(0.0, 1.0).check("factor of the step schedule", factor)
            }
            Falling::Constant | Falling::Cosine => Ok(()),
        }
    }

    /// Refuses what would be ignored.
    fn check_effect(&self) -> Result<(), TrainError> {
        if self.world_invariant.is_some() && self.wire != Wire::F32 {
            return refuse(format!(
                "gradients are rounded to {} on their way between ranks, so the bits depend on the number of ranks: send f32 \
                 with --order world-invariant",
                self.wire
            ));
        }
        if self.optimizer.nesterov && self.optimizer.kind != OptimizerKind::Sgd {
            return refuse(format!(
                "{} has no Nesterov momentum: leave it out, or take sgd",
                self.optimizer.kind
            ));
        }
        if self.hidden.is_some() && self.model != ModelKind::Mlp {
            return refuse(format!(
                "the hidden layers of the {} are as they are: leave them out, or take the mlp",
                self.model
            ));
        }
        Ok(())
    }

    /// Refuses an algorithm that would not be used.
    pub(super) fn check_choice(
        &self,
        choice: &Choice,
        device: &Device,
        computes: &str,
    ) -> Result<(), TrainError> {
        match choice {
            Choice::Vendor(Vendor::Nccl) | Choice::InNodes(_, Vendor::Nccl) if device.is_cpu() => {
                refuse(format!(
                    "the algorithm {choice} works in the memory of GPUs, and this run computes {computes}: choose another one, or \
                 auto"
                ))
            }
            Choice::Auto => Ok(()),
            Choice::Algorithm(algorithm) if *algorithm == buckets::IN_TREE => Ok(()),
            choice if self.world_invariant.is_some() => refuse(format!(
                "the algorithm {choice} would not be used: bits that do not depend on the number of ranks bind the all-reduce \
                 to {}; leave it out",
                buckets::IN_TREE
            )),
            _ => Ok(()),
        }
    }

    /// Refuses parts of a step that so many ranks cannot share.
    pub(super) fn check_world(&self, ranks: usize) -> Result<(), TrainError> {
        match self.world_invariant {
            Some(parts) if !parts.is_power_of_two() || !parts.is_multiple_of(ranks) => refuse(format!(
                "{parts} parts of a step for {ranks} ranks: bits that do not depend on the number of ranks need a power of two \
                 that is a multiple of it"
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a step that takes more samples than there are.
    pub(super) fn check_data(
        &self,
        dataset: Dataset,
        global_batch: usize,
        ranks: usize,
    ) -> Result<Dataset, TrainError> {
        let samples = dataset.train.len();
        if global_batch > samples {
            return refuse(format!(
                "a global batch of {global_batch} samples on {ranks} ranks, but {} has only {samples} to train on: choose a \
                 smaller batch",
                self.source
            ));
        }
        Ok(dataset)
    }
}

fn refuse<T>(why: String) -> Result<T, TrainError> {
    Err(TrainError::Setting(why))
}

/// What a number may be: from or above the first, up to the second.
#[derive(Debug, Clone, Copy)]
enum Range {
    From(f64, f64),
    Above(f64, f64),
}

impl Range {
    fn check(self, name: &str, value: f64) -> Result<(), TrainError> {
        let is_inside = match self {
            Self::From(least, most) => (least..=most).contains(&value),
            Self::Above(least, most) => least < value && value <= most,
        };
        if is_inside { Ok(()) } else { refuse(format!("the {name} is {}: it must be {self}", Figure(value))) }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::From(least, most) => write!(f, "from {} to {}", Figure(least), Figure(most)),
            Self::Above(least, most) => write!(f, "above {}, and at most {}", Figure(least), Figure(most)),
        }
    }
}

/// A number as a person writes it: with an exponent where it has many digits before or after its point.
pub(crate) struct Figure(pub(crate) f64);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value) = *self;
        match value.abs() {
            0.0 | 1e-4..1e6 => write!(f, "{value}"),
            _ => write!(f, "{value:e}"),
        }
    }
}
