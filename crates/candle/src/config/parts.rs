//! Values derived from several options of a configuration.

use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::Config;
use super::check::refuse;
use super::stoppable::stoppable;
use crate::model::ModelKind;
use clap::ArgMatches;
use unisono::size;
#[cfg(not(feature = "service"))]
use unisono_data::load;
use unisono_data::{
    Augmentation, Cache, DataError, Dataset, Normalize, SnapshotOptions, SnapshotReport, Source,
};
#[cfg(feature = "service")]
use unisono_data_service::load;
use unisono_strategies::Strategy;
use unisono_train::checkpoint::When;
use unisono_train::metrics::{Metrics, Named, Regression};
use unisono_train::optimizer::{Averaged, NamedRule, OptimizerSettings, Sgd};
use unisono_train::rate::{Rate, Schedule, ScheduleKind};
use unisono_train::{
    BucketSettings, Checkpoints, EarlyStopping, LocalSteps, Order, RunSettings, TrainError, Wire, Wires,
};

/// The augmentation of training images.
#[derive(Debug, Clone)]
pub enum Augment {
    /// The default of the source: `usual`.
    Usual,
    /// These transforms.
    By(Augmentation),
}

impl FromStr for Augment {
    type Err = DataError;

    fn from_str(names: &str) -> Result<Self, DataError> {
        let alone = |error| DataError::other(format!("{error}; `usual` is the default of --augment alone"));
        if names == "usual" { Ok(Self::Usual) } else { names.parse().map(Self::By).map_err(alone) }
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str("usual"),
            Self::By(augmentation) => augmentation.fmt(f),
        }
    }
}

/// The height and width of images: `64x48`, or `64` for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageSize(pub [usize; 2]);

const MOST_SIDE: usize = 1 << 15;

impl FromStr for ImageSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (height, width) = text.split_once('x').unwrap_or((text, text));
        let side = |text: &str| text.parse().ok().filter(|side| (1..=MOST_SIDE).contains(side));
        let range = format!("a height and a width from 1 to {MOST_SIDE}");
        let expected = || format!("expected {range}, such as `64x48`, or one number for both");
        side(height).zip(side(width)).map(|(height, width)| Self([height, width])).ok_or_else(expected)
    }
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([height, width]) = self;
        write!(f, "{height}x{width}")
    }
}

/// A size in bytes: `512M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let size_bytes = size::bytes(text).filter(|size_bytes| (1..=1 << 40).contains(size_bytes));
        size_bytes.map(|bytes| Self(bytes as u64)).ok_or("expected 1 to 1024G bytes, such as 100M")
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&size::text(self.0 as usize))
    }
}

impl Config {
    /// Applies the constants of SGD on a command line, as options of their own or as part of `--optimizer`. Both override those of a file.
    pub(super) fn apply_sgd(&mut self, options: &ArgMatches) -> Result<(), TrainError> {
        let Some(&sgd) = (&*self.optimizer.0 as &dyn Any).downcast_ref::<Sgd>() else { return Ok(()) };
        let optimizer = options.get_raw("optimizer").and_then(|mut texts| texts.next());
        let optimizer = optimizer.unwrap_or_default().to_string_lossy();
        let is_part = |constant: &str| optimizer.contains(&format!("{constant}="));
        let momentum = self.momentum.unwrap_or(sgd.momentum);
        for (option, differs) in
            [("momentum", momentum != sgd.momentum), ("nesterov", self.nesterov != sgd.nesterov)]
        {
            if differs && is_part(option) && options.contains_id(option) {
                return refuse(format!(
                    "--{option} has another value than the {option} of --optimizer {optimizer}: remove one of them"
                ));
            }
        }
        if is_part("momentum") {
            self.momentum = None;
        }
        if is_part("nesterov") {
            self.nesterov = false;
        } else if options.contains_id("nesterov") {
            self.optimizer = NamedRule::new(Sgd { nesterov: self.nesterov, ..sgd });
        }
        Ok(())
    }

    /// Returns the optimizer, with the constants that other options set.
    pub fn optimizer(&self) -> OptimizerSettings {
        let mut rule = Arc::clone(&self.optimizer.0);
        if let Some(&Sgd { momentum, nesterov }) = (&*rule as &dyn Any).downcast_ref() {
            let momentum = self.momentum.unwrap_or(momentum);
            rule = Arc::new(Sgd { momentum, nesterov: nesterov || self.nesterov });
        }
        if let Some(decay) = self.ema {
            rule = Arc::new(Averaged::new(rule, decay));
        }
        let mut optimizer = OptimizerSettings { weight_decay: self.weight_decay, ..rule.into() };
        if let Some(factors) = self.factors {
            optimizer.factors = Arc::new(factors);
        }
        optimizer
    }

    /// Returns the number of ranks of a pipeline, given the number of all ranks.
    pub fn pipeline_length(&self, ranks: usize) -> usize {
        self.stages.unwrap_or(ranks).max(1)
    }

    /// Returns the number of ranks that compute gradients, at least one, given the number of all ranks.
    pub(super) fn workers(&self, strategy: Strategy, ranks: usize) -> usize {
        match strategy {
            Strategy::ParameterServer => ranks.saturating_sub(self.servers).max(1),
            _ => ranks,
        }
    }

    /// Returns the number of replicas of the model that share the samples of a step, given the number of ranks.
    pub(super) fn replicas(&self, strategy: Strategy, ranks: usize) -> usize {
        match strategy {
            Strategy::Pipeline => (ranks / self.pipeline_length(ranks)).max(1),
            _ => self.workers(strategy, ranks),
        }
    }

    /// Returns the settings of local steps, if the run makes any.
    pub fn local_steps(&self) -> Option<LocalSteps> {
        self.local_steps.map(|steps| LocalSteps { steps, outer: self.outer })
    }

    /// Returns the wire formats that the run may use. There is at least one.
    pub(super) fn wires(&self) -> &[Wire] {
        match &self.wire {
            Wires::One(wire) => std::slice::from_ref(wire),
            Wires::Auto(wires) => wires,
        }
    }

    /// Returns the number of shards of a step, if the result is the same on any number of ranks.
    pub(super) fn world_invariant(&self) -> Option<usize> {
        (self.order == Order::Tree).then_some(self.shards)
    }

    pub(super) fn augmentation(&self) -> Augmentation {
        match &self.augment {
            None => Augmentation::default(),
            Some(Augment::Usual) => self.data.usual_augmentation(),
            Some(Augment::By(augmentation)) => augmentation.clone(),
        }
    }

    pub(super) fn checkpoints(&self) -> Option<Checkpoints> {
        let every = Some(Duration::from_secs(self.checkpoint_every_s));
        self.checkpoint_dir.clone().map(|directory| Checkpoints {
            directory,
            keep: self.keep,
            overwrites: self.overwrite,
            when: When { every_steps: self.checkpoint_every, every },
        })
    }

    /// Returns this configuration without checkpoints: the run saves none, and does not resume.
    pub fn without_checkpoints(&self) -> Self {
        let usual = Self::default();
        Self {
            checkpoint_dir: None,
            checkpoint_every: None,
            checkpoint_every_s: usual.checkpoint_every_s,
            keep: usual.keep,
            resume: false,
            overwrite: false,
            ..self.clone()
        }
    }

    /// Returns the requested metrics, or the defaults of a regression, which has no accuracy.
    pub(super) fn metrics(&self, is_regression: bool) -> Metrics {
        let measures_only_loss = self.strategy == Some(Strategy::ParameterServer);
        if is_regression && self.metrics.is_empty() && !measures_only_loss {
            return vec![Arc::new(Regression::R2), Arc::new(Regression::Mae)];
        }
        self.metrics.iter().map(|Named(metric)| Arc::clone(metric)).collect()
    }

    /// Returns the learning rate for this global batch.
    ///
    /// A larger batch has a less noisy gradient and permits a larger step:
    /// [`UpdateRule::scaled_rate`](unisono_train::optimizer::UpdateRule::scaled_rate). The same global batch has the same rate on any number of
    /// ranks.
    pub fn scaled_rate(&self, global_batch: usize) -> f64 {
        let usual = match self.model {
            ModelKind::Mlp => 128,
            ModelKind::Cnn | ModelKind::ResNet => 64,
            ModelKind::Transformer => 16,
        };
        self.optimizer.0.scaled_rate(self.learning_rate, global_batch as f64 / f64::from(usual))
    }

    /// Loads the data set for these settings, and reports a [snapshot](Self::snapshot) that was read or written. A request to [stop](Self::stop) ends
    /// the wait for it. The data are then read on in the background until the process ends.
    ///
    /// # Errors
    /// [`TrainError::Data`], with [`DataError::Stopped`] on a request to stop.
    pub fn kept_dataset(&self) -> Result<(Dataset, Option<SnapshotReport>), TrainError> {
        let mut source = self.data.clone();
        if let (Source::Service(service), Some(token)) = (&mut source, &self.data_token_file) {
            service.token_file = Some(token.clone());
        }
        let (options, compression) = (self.data_options(), self.snapshot_compression);
        let snapshot = self.snapshot.clone().map(|directory| SnapshotOptions { directory, compression });
        let loaded = stoppable(&self.stop, move || {
            let dataset = load(&source, &options)?;
            let Some(snapshot) = snapshot else { return Ok((dataset, None)) };
            let (dataset, report) = dataset.with_snapshot(&source, &snapshot)?;
            Ok((dataset, Some(report)))
        });
        Ok(loaded?)
    }

    /// Returns the options for loading the data set.
    pub fn data_options(&self) -> unisono_data::Options {
        let measured = self.data.has_image_files().then_some(Normalize::Measured);
        unisono_data::Options {
            seed: self.seed,
            context: self.context,
            target: self.target.clone(),
            augmentation: self.augmentation(),
            colour: self.colour,
            image_size: self.image_size.map(|ImageSize(sides)| sides),
            normalize: self.normalize.clone().or(measured),
            on_bad_sample: self.on_bad_sample,
            cache: Cache { folder: self.data_cache.clone(), report: self.report },
            stop: self.stop.clone(),
            ..unisono_data::Options::default()
        }
    }

    /// Returns the settings of a run with this global batch, number of steps per epoch, and peak learning rate.
    pub(super) fn run_settings(&self, global_batch: usize, steps: usize, peak: f64) -> RunSettings {
        let schedule = match self.schedule {
            ScheduleKind::Constant => Schedule::Constant,
            ScheduleKind::Step => {
                let every = self.step_epochs.saturating_mul(steps) as u64;
                Schedule::Step { every, factor: self.step_factor }
            }
            ScheduleKind::Cosine => Schedule::Cosine,
        };
        let all_steps = steps.saturating_mul(self.epochs) as u64;
        let rate = Rate::new(schedule, peak, self.warm_up, all_steps);
        RunSettings {
            buckets: self.buckets(global_batch),
            clip_norm: self.clip_norm,
            verify_replicas_every: self.verify_replicas_every,
            straggler_every: self.straggler_every,
            metrics: self.metrics(self.target.is_some()),
            evaluate_every: self.evaluate_every,
            early_stopping: self
                .patience
                .map(|patience| EarlyStopping { patience, min_delta: self.min_delta }),
            checkpoints: self.checkpoints(),
            stop: self.stop.clone(),
            log_directory: self.log_dir.clone(),
            ..RunSettings::new(self.epochs, global_batch, self.optimizer(), rate)
        }
    }

    pub(super) fn buckets(&self, global_batch: usize) -> BucketSettings {
        BucketSettings {
            bucket_bytes: self.bucket_bytes,
            wire: self.wires()[0],
            uncompressed_steps: self.uncompressed_steps,
            seed: self.seed,
            overlap: self.overlap,
            shard_optimizer: self.shard_optimizer,
            local_steps: self.local_steps(),
            order: self.order,
            // Rounded down to a power of two. The mean of the sums over a global batch then fits f16.
            f16_scale: (global_batch as f32).log2().floor().exp2().recip(),
            ..BucketSettings::default()
        }
    }
}
