//! The settings of a run of a built-in model, with defaults that suit the model.

use std::path::PathBuf;

use super::buckets::{BucketBytes, BucketSettings, Order, Overlap, Wire};
use super::device::DeviceKind;
use super::local::LocalSteps;
use super::model::ModelKind;
use super::optimizer::{AdamW, OptimizerSettings, Sgd};
use super::rate::{Rate, Schedule};
use super::run::{Checkpoints, EarlyStopping, RunSettings};
use crate::error::TrainError;
use crate::metrics::Metrics;
use crate::strategy::Strategy;
use unisono_data::{
    Augmentation, Dataset, Depth, Normalize, OnBadSample, SnapshotOptions, SnapshotReport, Source, Stop,
    Threads,
};

mod check;
mod identity;
mod input;
mod needs;
mod pipeline;
mod prepare;

pub(super) use check::Figure;

/// Everything that determines a run, except the number of ranks.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The data set.
    pub source: Source,
    /// The model.
    pub model: ModelKind,
    /// The widths of the MLP's hidden layers, or of the residual network's blocks; `None` for the default.
    pub hidden: Option<Vec<usize>>,
    /// The probability with which hidden values of the MLP and the transformer are dropped in training, from 0 to below 1.
    pub dropout: f64,
    /// A `safetensors` file with the values that parameters of the same names begin with: [`Parameters::load`].
    ///
    /// [`Parameters::load`]: crate::candle::Parameters::load
    pub initial: Option<PathBuf>,
    /// The number of epochs.
    pub epochs: usize,
    /// The micro-batch size: samples per rank and pass.
    pub batch_size: usize,
    /// The global batch size: samples per step over all ranks, in as many passes as needed. `None` means one pass
    /// per rank or, in a resumed run, the same as before.
    pub global_batch: Option<usize>,
    /// The optimizer and its constants.
    pub optimizer: OptimizerSettings,
    /// The learning rate after warm-up, for a global batch of `reference_batch`; see
    /// [`Settings::scaled_rate`].
    pub learning_rate: f64,
    /// The global batch that the learning rate belongs to.
    pub reference_batch: usize,
    /// The schedule of the learning rate after warm-up.
    pub schedule: Falling,
    /// The fraction of all steps spent on warm-up.
    pub warm_up: f64,
    /// The maximum norm of the mean gradient.
    pub clip_norm: Option<f64>,
    /// The random seed.
    pub seed: u64,
    /// Characters per text sample.
    pub context: usize,
    /// The column of a table that a regression predicts; `None` for classes. See [`unisono_data::Options::target`].
    pub target: Option<String>,
    /// Whether to read images from files in colour, and not as grey; `None` if training images have any.
    pub colour: Option<bool>,
    /// The height and width that images from files are resized and cropped to; `None` for the medians of the training images.
    pub image_size: Option<[usize; 2]>,
    /// The statistics that images are normalised by. `None` measures those of images from files, and takes those of MNIST for others.
    pub normalize: Option<Normalize>,
    /// Where the objects of a source on a server are kept.
    pub cache: unisono_data::Cache,
    /// The augmentation of images from files in training.
    pub augmentation: Augmentation,
    /// What becomes of damaged images.
    pub on_bad_sample: OnBadSample,
    /// Where decoded images are kept, to be read in every epoch and run; `None` to decode them each time.
    pub snapshot: Option<SnapshotOptions>,
    /// The most bytes of batches that are prepared at once on a rank; `None` for no bound.
    pub input_memory: Option<u64>,
    /// The number of input pipeline threads.
    pub input_threads: Threads,
    /// The number of steps whose batches are prefetched.
    pub prefetch: Depth,
    /// The device.
    pub device: DeviceKind,
    /// The wire format of gradients.
    pub wire: Wire,
    /// If not empty, the run takes the wire format among these that is predicted to be the fastest, and does not read `wire`. A resumed
    /// run keeps that of its checkpoint, if it is among them.
    pub wires: Vec<Wire>,
    /// How many steps send gradients as `f32` before a compressed wire format is used ([`BucketSettings::uncompressed_steps`]).
    pub uncompressed_steps: Option<u64>,
    /// How ranks share the work; `None` for the mirrored strategy that [suits](Strategy::suited) the world.
    pub strategy: Option<Strategy>,
    /// Whether bucket all-reduces overlap the backward pass.
    pub overlap: Overlap,
    /// The size of buckets.
    pub bucket_bytes: BucketBytes,
    /// Whether each rank updates its part of the parameters and holds the optimizer state of that part alone
    /// ([`BucketSettings::shard_optimizer`]).
    pub shard_optimizer: bool,
    /// If set, ranks step alone, and average their parameters after so many steps ([`BucketSettings::local_steps`]).
    pub local_steps: Option<LocalSteps>,
    /// If set, the bits do not depend on the number of ranks: the gradients of this many equal shards of each
    /// step are added in a tree. A power of two, and a multiple of the number of ranks.
    pub world_invariant: Option<usize>,
    /// Check every so many steps that all replicas are identical.
    pub verify_replicas_every: Option<u64>,
    /// Compare the ranks' step times every so many steps.
    pub straggler_every: Option<u64>,
    /// Evaluate the model every so many steps, besides the end of every epoch.
    pub evaluate_every: Option<u64>,
    /// What is measured in evaluations, besides loss and accuracy.
    pub metrics: Metrics,
    /// When to end before the last epoch.
    pub early_stopping: Option<EarlyStopping>,
    /// Where and when to save checkpoints.
    pub checkpoints: Option<Checkpoints>,
    /// Whether to resume from the newest checkpoint, if there is one.
    pub resumes: bool,
    /// Asks the run to save and stop, if it is set on any rank.
    pub stop: Stop,
    /// The directory for TensorBoard files.
    pub log_directory: Option<PathBuf>,
    /// The file for a trace of all ranks.
    pub trace: Option<PathBuf>,
}

/// The schedule of the learning rate after warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Falling {
    /// Constant.
    Constant,
    /// Multiplied by a factor after every so many epochs.
    Step {
        /// The number of epochs.
        epochs: usize,
        /// The factor.
        factor: f64,
    },
    /// Falls to zero along half a cosine.
    Cosine,
}

impl Settings {
    /// Defaults that suit this model, found on two ranks.
    pub fn new(source: Source, model: ModelKind) -> Self {
        let for_mlp = Self {
            source,
            model,
            hidden: None,
            dropout: 0.0,
            initial: None,
            epochs: 10,
            batch_size: 64,
            global_batch: None,
            optimizer: OptimizerSettings { weight_decay: 5e-4, ..OptimizerSettings::new(Sgd::default()) },
            learning_rate: 0.1,
            reference_batch: 128,
            schedule: Falling::Cosine,
            warm_up: 0.05,
            clip_norm: None,
            seed: 0,
            context: unisono_data::Options::default().context,
            target: None,
            colour: None,
            image_size: None,
            normalize: None,
            cache: unisono_data::Cache::default(),
            augmentation: Augmentation::default(),
            on_bad_sample: OnBadSample::Error,
            snapshot: None,
            input_memory: None,
            input_threads: Threads::Auto,
            prefetch: Depth::Auto,
            device: DeviceKind::Auto,
            wire: Wire::F32,
            wires: Vec::new(),
            uncompressed_steps: None,
            strategy: None,
            overlap: Overlap::Auto,
            bucket_bytes: BucketBytes::Auto,
            shard_optimizer: false,
            local_steps: None,
            world_invariant: None,
            verify_replicas_every: None,
            straggler_every: None,
            evaluate_every: None,
            metrics: Vec::new(),
            early_stopping: None,
            checkpoints: None,
            resumes: false,
            stop: Stop::default(),
            log_directory: None,
            trace: None,
        };
        match model {
            ModelKind::Mlp => for_mlp,
            ModelKind::Cnn | ModelKind::ResNet => {
                let (epochs, learning_rate) = if model == ModelKind::Cnn { (8, 0.05) } else { (4, 0.1) };
                Self { epochs, batch_size: 32, learning_rate, reference_batch: 64, warm_up: 0.1, ..for_mlp }
            }
            ModelKind::Transformer => Self {
                epochs: 2,
                batch_size: 8,
                optimizer: OptimizerSettings {
                    weight_decay: 0.1,
                    ..OptimizerSettings::new(AdamW::default())
                },
                learning_rate: 3e-3,
                reference_batch: 16,
                ..for_mlp
            },
        }
    }

    /// The default model for this source.
    pub fn default_model(source: &Source) -> ModelKind {
        match source {
            Source::Text(_) => ModelKind::Transformer,
            _ => ModelKind::Mlp,
        }
    }

    /// The learning rate for this global batch.
    ///
    /// A larger batch has a less noisy gradient and permits a larger step:
    /// [`UpdateRule::scaled_rate`](crate::optimizer::UpdateRule::scaled_rate). The same global batch has the same rate on any number of
    /// ranks.
    pub fn scaled_rate(&self, global_batch: usize) -> f64 {
        let factor = global_batch as f64 / self.reference_batch as f64;
        self.optimizer.rule.scaled_rate(self.learning_rate, factor)
    }

    /// The data set for these settings.
    ///
    /// # Errors
    /// [`TrainError::Data`].
    pub fn dataset(&self) -> Result<Dataset, TrainError> {
        self.kept_dataset().map(|(dataset, _)| dataset)
    }

    /// The same, and what was read or written of a [snapshot](Self::snapshot).
    ///
    /// # Errors
    /// [`TrainError::Data`].
    pub fn kept_dataset(&self) -> Result<(Dataset, Option<SnapshotReport>), TrainError> {
        let dataset = unisono_data::load(&self.source, &self.data_options())?;
        let Some(snapshot) = &self.snapshot else { return Ok((dataset, None)) };
        let (dataset, report) = dataset.with_snapshot(&self.source, snapshot)?;
        Ok((dataset, Some(report)))
    }

    /// The options that the data set is loaded with.
    pub fn data_options(&self) -> unisono_data::Options {
        let measured = self.source.has_image_files().then_some(Normalize::Measured);
        unisono_data::Options {
            seed: self.seed,
            context: self.context,
            target: self.target.clone(),
            augmentation: self.augmentation.clone(),
            colour: self.colour,
            image_size: self.image_size,
            normalize: self.normalize.clone().or(measured),
            on_bad_sample: self.on_bad_sample,
            cache: self.cache.clone(),
            stop: self.stop.clone(),
            ..unisono_data::Options::default()
        }
    }

    fn run_settings(&self, global_batch: usize, steps: usize) -> RunSettings {
        let schedule = match self.schedule {
            Falling::Constant => Schedule::Constant,
            Falling::Step { epochs, factor } => {
                Schedule::Step { every: epochs.saturating_mul(steps) as u64, factor }
            }
            Falling::Cosine => Schedule::Cosine,
        };
        let all_steps = steps.saturating_mul(self.epochs) as u64;
        let rate = Rate::new(schedule, self.scaled_rate(global_batch), self.warm_up, all_steps);
        RunSettings {
            buckets: self.buckets(global_batch),
            clip_norm: self.clip_norm,
            verify_replicas_every: self.verify_replicas_every,
            straggler_every: self.straggler_every,
            metrics: self.metrics.clone(),
            evaluate_every: self.evaluate_every,
            early_stopping: self.early_stopping,
            checkpoints: self.checkpoints.clone(),
            stop: self.stop.clone(),
            log_directory: self.log_directory.clone(),
            trace: self.trace.clone(),
            ..RunSettings::new(self.epochs, global_batch, self.optimizer.clone(), rate)
        }
    }

    fn buckets(&self, global_batch: usize) -> BucketSettings {
        BucketSettings {
            bucket_bytes: self.bucket_bytes,
            wire: self.wire,
            uncompressed_steps: self.uncompressed_steps.unwrap_or(0),
            seed: self.seed,
            overlap: self.overlap,
            shard_optimizer: self.shard_optimizer,
            local_steps: self.local_steps,
            order: if self.world_invariant.is_some() { Order::Tree } else { Order::Free },
            // The power of two below: f16 then holds the mean over a global batch of the sums.
            f16_scale: (global_batch as f32).log2().floor().exp2().recip(),
            ..BucketSettings::default()
        }
    }
}

#[cfg(test)]
mod tests;
