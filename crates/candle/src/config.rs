//! The configuration of a run. Values come from a file, the command line or code; defaults suit the built-in model.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;
use serde::{Deserialize, Serialize};

use crate::device::DeviceKind;
use crate::model::ModelKind;
use unisono::Choice;
use unisono_data::{Compression, Normalize, OnBadSample, Source, Stop};
use unisono_steps::pipeline::PipelineSchedule;
use unisono_strategies::{Staleness, StrategyKind};
use unisono_train::metrics::Named;
use unisono_train::optimizer::{AdamW, Factors, NamedRule};
use unisono_train::rate::ScheduleKind;
use unisono_train::{BucketBytes, Order, Outer, Overlap, Wires};

mod check;
mod file;
mod identity;
mod input;
mod needs;
mod own;
mod parts;
mod pipeline;
mod prepare;
pub(super) mod text;

pub(super) use check::Figure;
pub use file::Origin;
pub use needs::MemoryEstimate;
pub use parts::{Augment, ImageSize, Size};

/// Everything that determines a run, except the number of ranks. A field is an option of `unisono train`, and a key of its
/// [file](Self::read): their help is the documentation of the field. A program of your own has them on its command line by
/// [`Config::options`].
///
/// ```
/// use unisono_data::Source;
/// use unisono_candle::Config;
/// use unisono_candle::model::ModelKind;
///
/// let settings = Config { epochs: 2, ..Config::new(Source::Digits, ModelKind::Cnn) };
/// settings.check()?;
/// assert!(settings.to_toml()?.contains("\nepochs = 2\n"));
/// # Ok::<(), unisono_train::TrainError>(())
/// ```
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Config {
    /// Data set: digits (generated), idx:DIR (MNIST format), cifar:DIR (CIFAR-10's binary files), images:DIR (one folder per class),
    /// tfrecord:FILES_OR_DIR, webdataset:FILES_OR_DIR (tar files), npy:DIR (NumPy's arrays), csv:FILES, parquet:FILES, arrow:FILES,
    /// text:FILES or service:HOST:PORT,… (servers started by serve-data). FILES are separated by commas, or patterns such as train-*.tar and
    /// train-{000..119}.tar; instead of a file or directory also s3://BUCKET/FOLDER_OR_OBJECT or https://HOST/FILE
    #[arg(long, default_value = "digits")]
    #[serde(with = "text")]
    pub data: Source,
    /// Folder in which the files of data sets on servers are kept [default: one in the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub data_cache: Option<PathBuf>,
    /// With --data csv:, parquet: or arrow: the column of numbers to predict, a regression [default: classes, of the column `label` or the
    /// last one]
    #[arg(long, value_name = "COLUMN")]
    pub target: Option<String>,
    /// Characters per text sample
    #[arg(long, default_value = "64", value_name = "N")]
    pub context: usize,
    /// Read the images of images:, tfrecord: and webdataset: in colour (yes) or as grey (no) [default: in colour if they have any]
    #[arg(long, value_name = "YES_OR_NO", num_args = 0..=1, default_missing_value = "yes")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub colour: Option<bool>,
    /// Resize and crop the images of images:, tfrecord: and webdataset: to this height and width, such as 64 or 64x48 [default: the medians]
    #[arg(long, value_name = "HxW")]
    #[serde(with = "text::option")]
    pub image_size: Option<ImageSize>,
    /// Normalise images by means and deviations for each channel, such as 0.485,0.456,0.406/0.229,0.224,0.225, or by measured ones
    /// [default: measured for images:, tfrecord: and webdataset:, MNIST's 0.1307/0.3081 for others]
    #[arg(long, value_name = "MEANS/DEVIATIONS")]
    #[serde(with = "text::option")]
    pub normalize: Option<Normalize>,
    /// Vary training images at random by these transforms: affine (shifts and rotations), crop, mirror, jitter (of colours) and erase, separated
    /// by commas, also with amounts as in crop:4 [default of --augment alone: mirror,crop for cifar:, affine for others]
    #[arg(long, value_name = "TRANSFORMS", num_args = 0..=1, default_missing_value = "usual")]
    #[serde(with = "text::option")]
    pub augment: Option<Augment>,
    /// Keep the images of images:, tfrecord: and webdataset: in this directory as they are when decoded, and read them from there in every epoch
    /// and run
    #[arg(long, value_name = "DIR")]
    pub snapshot: Option<PathBuf>,
    /// Storage format of a snapshot: none (as it is) or lz4
    #[arg(long, default_value = "none", value_name = "NAME")]
    #[serde(with = "text")]
    pub snapshot_compression: Compression,
    /// Random seed
    #[arg(long, default_value = "0", value_name = "N")]
    pub seed: u64,
    /// Treatment of damaged images: error, skip (they are left out, counted and named), or skip:N for at most N on each rank
    #[arg(long, default_value = "error", value_name = "POLICY")]
    #[serde(with = "text")]
    pub on_bad_sample: OnBadSample,
    /// The most memory for batches that are prepared at once, on each rank, such as 512M [default: no bound]
    #[arg(long, value_name = "BYTES")]
    #[serde(with = "text::option")]
    pub input_memory: Option<Size>,
    /// With --data service: the file with the servers' token
    #[arg(long, value_name = "FILE")]
    pub data_token_file: Option<PathBuf>,
    /// Input pipeline threads per rank [default: adjusted while running]
    #[arg(long, value_name = "N")]
    pub input_threads: Option<usize>,
    /// Steps whose batches are prefetched [default: adjusted while running]
    #[arg(long, value_name = "N")]
    pub prefetch: Option<usize>,
    /// Model: mlp, cnn or resnet for images, mlp for tables, transformer for text [default: mlp or transformer]
    #[arg(long, default_value = "mlp")]
    #[serde(with = "text")]
    pub model: ModelKind,
    /// Widths of the hidden layers of the MLP, or of the blocks of the resnet or the transformer, comma-separated
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub hidden: Option<Vec<usize>>,
    /// Probability with which hidden values of the MLP or the transformer are dropped in training, from 0 to below 1
    #[arg(long, default_value = "0", value_name = "P")]
    pub dropout: f64,
    /// Safetensors file, of a model or a checkpoint, with the values that parameters of the same names begin with
    #[arg(long, value_name = "FILE")]
    pub initial: Option<PathBuf>,
    /// Number of epochs [default: depends on the model]
    #[arg(long, default_value = "10", value_name = "N")]
    pub epochs: usize,
    /// Micro-batch size: samples per rank and pass [default: depends on the model]
    #[arg(long, default_value = "64", value_name = "PER_RANK")]
    pub batch_size: usize,
    /// Global batch size: samples per step over all ranks; gradients accumulate over several passes if needed
    /// [default: one pass per rank, or that of the run that is resumed]
    #[arg(long, value_name = "N")]
    pub global_batch: Option<usize>,
    /// Device: cpu, cuda, or auto for GPUs if every rank finds one
    #[arg(long, default_value = "auto")]
    #[serde(with = "text")]
    pub device: DeviceKind,
    /// Optimizer, perhaps with its constants, such as adamw:beta2=0.95,amsgrad=true [default: depends on the model]
    #[arg(long, default_value = "sgd")]
    #[serde(with = "text")]
    pub optimizer: NamedRule,
    /// Learning rate for the model's usual global batch; scaled to the actual one [default: depends on the model]
    #[arg(long, default_value = "0.1", value_name = "RATE")]
    pub learning_rate: f64,
    /// Learning rate schedule after warm-up: constant, step or cosine
    #[arg(long, default_value = "cosine")]
    #[serde(with = "text")]
    pub schedule: ScheduleKind,
    /// Epochs between drops of the learning rate, with --schedule step
    #[arg(long, default_value = "3", value_name = "EPOCHS")]
    pub step_epochs: usize,
    /// Factor by which the learning rate drops, with --schedule step
    #[arg(long, default_value = "0.1", value_name = "FACTOR")]
    pub step_factor: f64,
    /// Fraction of all steps spent on warm-up [default: depends on the model]
    #[arg(long, default_value = "0.05", value_name = "SHARE")]
    pub warm_up: f64,
    /// Weight decay [default: depends on the model]
    #[arg(long, default_value = "5e-4", value_name = "RATE")]
    pub weight_decay: f32,
    /// Momentum, with --optimizer sgd [default: 0.9]
    #[arg(long, value_name = "SHARE")]
    pub momentum: Option<f32>,
    /// Use Nesterov momentum, with --optimizer sgd
    #[arg(long)]
    pub nesterov: bool,
    /// Evaluate and save an exponential moving average of the parameters, which every step decays by this factor, such as 0.999
    #[arg(long, value_name = "DECAY")]
    pub ema: Option<f32>,
    /// Clip the norm of the mean gradient to this value [default: no clipping]
    #[arg(long, value_name = "NORM")]
    pub clip_norm: Option<f64>,
    /// Sharing of the work between ranks: one-device (one rank alone), mirrored (every rank of one node holds the same model), multi-worker-mirrored (of
    /// any number of nodes), central-storage (the ranks of one node share one copy of the parameters, their gradients and the optimizer state),
    /// parameter-server (some ranks hold the parameters, the others compute gradients) or pipeline (the model is cut into stages, each on a rank of its
    /// own, which pass on micro-batches) [default: one-device, mirrored or multi-worker-mirrored, by the ranks and nodes there are]
    #[arg(long, value_name = "STRATEGY")]
    #[serde(with = "text::option")]
    pub strategy: Option<StrategyKind>,
    /// With --strategy parameter-server: the number of ranks that serve, the first ones; the others work
    #[arg(long, default_value = "1", value_name = "N")]
    pub servers: usize,
    /// With --strategy parameter-server: how many steps of updates a gradient may miss: 0 (synchronous), a number, or unbounded
    #[arg(long, default_value = "0", value_name = "STEPS")]
    #[serde(with = "text")]
    pub staleness: Staleness,
    /// With --strategy parameter-server, under unisono launch --elastic: go on without a worker that is lost, and let it join when it is
    /// started again
    #[arg(long)]
    pub elastic: bool,
    /// With --staleness: apply a gradient that missed the updates of n steps at 1/(1+n) of the learning rate
    #[arg(long)]
    pub damp_stale: bool,
    /// With --strategy pipeline: the ranks of a pipeline, each with a stage of the model; several pipelines are replicas of each other
    /// [default: all ranks]
    #[arg(long, value_name = "N")]
    pub stages: Option<usize>,
    /// With --strategy pipeline: into how many micro-batches a pipeline cuts its samples of a step [default: 4 per stage]
    #[arg(long, value_name = "N")]
    pub micro_batches: Option<usize>,
    /// With --strategy pipeline: the order of passes: gpipe, 1f1b or interleaved:STAGES (of each rank)
    #[arg(long, default_value = "1f1b", value_name = "SCHEDULE")]
    #[serde(with = "text")]
    pub pipeline_schedule: PipelineSchedule,
    /// With --strategy pipeline: the layers that stages begin with, but for the first, comma-separated [default: measured, and cut evenly]
    #[arg(long, value_name = "LAYER,LAYER", value_delimiter = ',')]
    pub split_at: Option<Vec<String>>,
    /// All-reduce algorithm, auto, mpi, or rules by size, such as "tree:0-8K;ring:8K-" [default:
    /// UNISONO_ALGORITHM, or auto if it is not set]
    #[arg(long)]
    #[serde(with = "text::option")]
    pub algorithm: Option<Choice>,
    /// Wire format of gradients: f32, bf16, f16, or, between nodes alone, int8, int4, int8:stochastic, int4:stochastic, onebit,
    /// topk:FRACTION, threshold:MAGNITUDE or powersgd:RANK; or that of several which is predicted to be the fastest, such as
    /// auto:f32,bf16,int8
    #[arg(long, default_value = "f32", value_name = "FORMAT")]
    #[serde(with = "text")]
    pub wire: Wires,
    /// Send gradients as f32 in the first N steps, with a --wire that compresses them: the same loss in fewer steps
    #[arg(long, default_value = "0", value_name = "N")]
    pub uncompressed_steps: u64,
    /// Gradient all-reduce: beside (overlaps the backward pass), across (and the next forward pass), in-turn (follows it) or auto
    #[arg(long, default_value = "auto")]
    #[serde(with = "text")]
    pub overlap: Overlap,
    /// Bucket size: bytes of gradients per all-reduce; auto is 25M on one node, and between nodes the smallest that is
    /// predicted to be about as cheap
    #[arg(long, default_value = "auto", value_name = "BYTES")]
    #[serde(with = "text")]
    pub bucket_bytes: BucketBytes,
    /// Divide the update and the optimizer state among the ranks, each with its part of the parameters (ZeRO stage 1); the
    /// result has the same bits
    #[arg(long)]
    pub shard_optimizer: bool,
    /// Step alone N times, then average parameters: another algorithm, which communicates less (local SGD)
    #[arg(long, value_name = "N")]
    pub local_steps: Option<u64>,
    /// The end of a round, with --local-steps: average, or nesterov:RATE,MOMENTUM (DiLoCo)
    #[arg(long, default_value = "average", value_name = "STEP")]
    #[serde(with = "text")]
    pub outer: Outer,
    /// Order of additions: free (the fastest; results may depend on the number of ranks) or world-invariant (the same bits on any number of
    /// ranks that divides --shards)
    #[arg(long, default_value = "free")]
    #[serde(with = "text")]
    pub order: Order,
    /// Shards per step, with --order world-invariant: a power of two and a multiple of the number of ranks
    #[arg(long, default_value = "8", value_name = "N")]
    pub shards: usize,
    /// Check every STEPS steps that all replicas are identical
    #[arg(long, value_name = "STEPS")]
    pub verify_replicas_every: Option<u64>,
    /// Compare the step times of all ranks every STEPS steps, and report a straggler
    #[arg(long, value_name = "STEPS")]
    pub straggler_every: Option<u64>,
    /// Evaluate on the held-out samples every STEPS steps, besides the end of every epoch
    #[arg(long, value_name = "STEPS")]
    pub evaluate_every: Option<u64>,
    /// Metrics of evaluations besides loss and accuracy, comma-separated: top-K (the accuracy if any of K guesses may be right), f1 (macro F1);
    /// of a regression r2 and mae (the mean absolute error in standard deviations of the target), which are its default
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub metrics: Vec<Named>,
    /// End after N evaluations in a row whose loss was not less than the least before them
    #[arg(long, value_name = "N")]
    pub patience: Option<u32>,
    /// With --patience: how much less the loss must be to count
    #[arg(long, default_value = "0", value_name = "NATS")]
    pub min_delta: f64,
    /// Directory for checkpoints; one is always saved at the end
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Save a checkpoint every STEPS steps
    #[arg(long, value_name = "STEPS")]
    pub checkpoint_every: Option<u64>,
    /// Save a checkpoint when SECONDS have passed since the last
    #[arg(long, default_value = "600", value_name = "SECONDS")]
    pub checkpoint_every_s: u64,
    /// Number of newest checkpoints to keep; the one with the lowest training loss, or with --patience the lowest test loss,
    /// is kept besides
    #[arg(long, default_value = "3", value_name = "N")]
    pub keep: usize,
    /// Resume from the newest checkpoint, or start afresh if there is none: one command for the first start and every restart
    #[arg(long)]
    pub resume: bool,
    /// Delete the checkpoints of another run in the directory and start afresh; without this or --resume the command refuses
    /// such a directory
    #[arg(long)]
    pub overwrite: bool,
    /// Write TensorBoard curves to this directory
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// The origin of a file's values, which errors name.
    #[arg(skip)]
    #[serde(skip)]
    pub origin: Origin,
    /// The factors of a parameter's weight decay and learning rate by its name and shape; [`Factors::of_shape`] by default.
    #[arg(skip)]
    #[serde(skip)]
    pub factors: Option<fn(&str, &[usize]) -> Factors>,
    /// Receives messages about downloads and about waits for data ([`unisono_data::Cache::tell`]).
    #[arg(skip)]
    #[serde(skip)]
    pub tell: Option<fn(&str)>,
    /// Makes the run save a checkpoint and stop, if set on any rank.
    #[arg(skip)]
    #[serde(skip)]
    pub stop: Stop,
}

impl Default for Config {
    /// Returns the default model on generated digits.
    fn default() -> Self {
        Self::new(Source::Digits, ModelKind::Mlp)
    }
}

impl Config {
    /// Returns the defaults for this model, found on two ranks.
    pub fn new(data: Source, model: ModelKind) -> Self {
        let for_mlp = Self { data, model, ..Self::of_nothing() };
        match model {
            ModelKind::Mlp => for_mlp,
            ModelKind::Cnn => {
                Self { epochs: 8, batch_size: 32, learning_rate: 0.05, warm_up: 0.1, ..for_mlp }
            }
            ModelKind::ResNet => Self { epochs: 4, batch_size: 32, warm_up: 0.1, ..for_mlp },
            ModelKind::Transformer => Self {
                epochs: 2,
                batch_size: 8,
                optimizer: NamedRule::new(AdamW::default()),
                weight_decay: 0.1,
                learning_rate: 3e-3,
                ..for_mlp
            },
        }
    }

    /// Returns the default model for this source.
    pub fn default_model(source: &Source) -> ModelKind {
        match source {
            Source::Text(_) => ModelKind::Transformer,
            _ => ModelKind::Mlp,
        }
    }
}

#[cfg(test)]
mod tests;
