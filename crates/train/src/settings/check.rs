//! Checks settings, by themselves and for the data.

use std::fmt;

use candle_core::Device;

use super::{Falling, Settings};
use crate::buckets::{self, BucketBytes, Overlap, Wire};
use crate::error::TrainError;
use crate::metrics;
use crate::model::ModelKind;
use crate::strategy::Strategy;
use unisono::{Choice, Vendor};
use unisono_data::{Dataset, Kind, OnBadSample};

impl Settings {
    /// Refuses settings that are invalid for any data, or would have no effect.
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
        let bucket = match self.bucket_bytes {
            BucketBytes::Fixed(bytes) => bytes,
            BucketBytes::Auto => 1,
        };
        positive("the bytes of a bucket", bucket)?;
        positive("the context", self.context)?;
        positive("the size of a hidden layer", self.hidden.iter().flatten().copied().min().unwrap_or(1))?;
        let comparisons = self.verify_replicas_every.unwrap_or(1).min(self.straggler_every.unwrap_or(1));
        positive("the number of steps between comparisons", comparisons as usize)?;
        positive("the number of steps between evaluations", self.evaluate_every.unwrap_or(1) as usize)?;
        positive("the patience", self.early_stopping.map_or(1, |early| early.patience as usize))?;
        match self.schedule {
            Falling::Step { epochs, .. } => {
                positive("the number of epochs between drops of the learning rate", epochs)
            }
            Falling::Constant | Falling::Cosine => Ok(()),
        }
    }

    fn check_rates(&self) -> Result<(), TrainError> {
        Range::Above(0.0, 1e6).check("learning rate", self.learning_rate)?;
        Range::From(0.0, 1e6).check("weight decay", f64::from(self.optimizer.weight_decay))?;
        self.optimizer.rule.check().or_else(refuse)?;
        Range::Above(0.0, 1e30).check("norm to clip to", self.clip_norm.unwrap_or(1.0))?;
        Range::From(0.0, 1.0).check("share of warm-up", self.warm_up)?;
        let min_delta = self.early_stopping.map_or(0.0, |early| early.min_delta);
        Range::From(0.0, 1e6).check("least fall of the loss", min_delta)?;
        if !(0.0..1.0).contains(&self.dropout) {
            return refuse(format!("the dropout is {}: it must be from 0 to below 1", Figure(self.dropout)));
        }
        match self.schedule {
            Falling::Step { factor, .. } => {
                Range::From(0.0, 1.0).check("factor of the step schedule", factor)
            }
            Falling::Constant | Falling::Cosine => Ok(()),
        }
    }

    /// Refuses settings that would have no effect.
    fn check_effect(&self) -> Result<(), TrainError> {
        if self.world_invariant.is_some() && (self.wire != Wire::F32 || !self.wires.is_empty()) {
            return refuse(format!(
                "gradients are rounded to {} between ranks, so the bits depend on the number of ranks: use --wire f32 \
                 with --order world-invariant",
                self.wire
            ));
        }
        if self.target.is_some() && !self.source.is_table() {
            return refuse(format!(
                "a target is a column of a table, and {} is none: remove --target",
                self.source
            ));
        }
        if let Some(why) = self.buckets(1).conflict() {
            return refuse(why);
        }
        if self.hidden.is_some() && !self.model.has_widths() {
            return refuse(format!(
                "the hidden layers of the {} are fixed: remove --hidden, or use the mlp or the resnet",
                self.model
            ));
        }
        if self.dropout != 0.0 && !self.model.has_dropout() {
            return refuse(format!(
                "the {} drops no values: remove --dropout, or use the mlp or the transformer",
                self.model
            ));
        }
        if self.model == ModelKind::ResNet && self.world_invariant.is_some() {
            return refuse(
                "the resnet normalises over the samples of all ranks, so the bits depend on the number of ranks: use another \
                 model, or remove --order world-invariant"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Refuses what a strategy cannot do.
    pub(super) fn check_strategy(&self, strategy: &Strategy) -> Result<(), TrainError> {
        let is_across = self.overlap == Overlap::Across;
        let is_invariant = self.world_invariant.is_some();
        let compresses = self.wire != Wire::F32 || !self.wires.is_empty();
        let refused = match strategy {
            Strategy::Pipeline(_) => vec![
                (
                    self.model == ModelKind::ResNet,
                    "--model resnet",
                    "batch norm needs all samples of a step at once",
                ),
                (self.initial.is_some(), "--initial", "stages begin with values of their own"),
                (self.dropout != 0.0, "--dropout", "a stage does not know the pass that it drops values of"),
                (
                    is_invariant,
                    "--order world-invariant",
                    "stages add the gradients of micro-batches in turn",
                ),
                (self.local_steps.is_some(), "--local-steps", "the stages of a model step together"),
                (!self.wires.is_empty(), "--wire auto", "stages would choose differently: name one format"),
                (is_across, "--overlap across", "a stage's update ends before its next pass"),
            ],
            Strategy::CentralStorage => vec![
                (is_invariant, "--order world-invariant", "ranks add their gradients in turn"),
                (self.local_steps.is_some(), "--local-steps", "there is one copy of the parameters"),
                (compresses, "--wire", "no gradient travels"),
                (
                    self.shard_optimizer,
                    "--shard-optimizer",
                    "there is one optimizer state, and each rank updates its part, anyway",
                ),
                (is_across, "--overlap across", "an update ends before the next pass"),
            ],
            Strategy::ParameterServer(_) => {
                vec![
                    (!self.wires.is_empty(), "--wire auto", "it compares all-reduces: name one format"),
                    (
                        self.on_bad_sample != OnBadSample::Error,
                        "--on-bad-sample skip",
                        "nobody counts what workers skip",
                    ),
                ]
            }
            Strategy::OneDevice | Strategy::Mirrored | Strategy::MultiWorkerMirrored => Vec::new(),
        };
        if let Some((_, option, why)) = refused.into_iter().find(|(is_so, _, _)| *is_so) {
            return refuse(format!("{strategy} does not go with {option}: {why}"));
        }
        match strategy {
            Strategy::Pipeline(pipeline)
                if pipeline.ranks == Some(0) || pipeline.micro_batches == Some(0) =>
            {
                refuse("a pipeline has one rank and one micro-batch at least".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Refuses an algorithm that would not be used.
    pub(super) fn check_choice(
        &self,
        choice: &Choice,
        device: &Device,
        computes: Option<&str>,
    ) -> Result<(), TrainError> {
        match choice {
            _ if choice.vendor() == Some(Vendor::Nccl) && device.is_cpu() => refuse(format!(
                "the algorithm {choice} works on GPU memory, and this run computes {}: choose another one, or auto",
                computes.unwrap_or("on the CPU: there is no GPU")
            )),
            Choice::Auto => Ok(()),
            choice if *choice == buckets::IN_TREE.into() => Ok(()),
            choice if self.world_invariant.is_some() => refuse(format!(
                "the algorithm {choice} would not be used: a result independent of the number of ranks requires {}; remove \
                 --algorithm",
                buckets::IN_TREE
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a number of shards that the ranks cannot divide.
    pub(super) fn check_world(&self, ranks: usize) -> Result<(), TrainError> {
        match self.world_invariant {
            Some(parts) if !parts.is_power_of_two() || !parts.is_multiple_of(ranks) => refuse(format!(
                "{parts} shards per step on {ranks} ranks: the number of shards must be a power of two and a multiple of the \
                 number of ranks"
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a global batch larger than the data set, and metrics that say nothing of it.
    pub(super) fn check_data(
        &self,
        dataset: Dataset,
        global_batch: usize,
        ranks: usize,
    ) -> Result<Dataset, TrainError> {
        let classes = match &dataset.kind {
            Kind::Images { classes, .. } | Kind::Table { classes, .. } => *classes,
            Kind::Text { vocabulary, .. } => vocabulary.len(),
        };
        if classes == 1 && dataset.schema.target.is_none() {
            return refuse(format!("{} has one class alone: there is nothing to learn", self.source));
        }
        metrics::check(&self.metrics, Some(classes))?;
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

/// A range of numbers: from or above the first, up to the second.
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

/// A human-readable number: with an exponent if it would have many digits.
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
