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
use unisono_strategies::{Staleness, Strategy};
use unisono_train::metrics::Named;
use unisono_train::optimizer::{AdamW, Factors, NamedRule};
use unisono_train::rate::ScheduleKind;
use unisono_train::{BucketBytes, Order, Outer, Overlap, Wires};

mod check;
mod file;
mod identity;
mod input;
mod needs;
mod parts;
mod pipeline;
mod prepare;
mod same;
mod stoppable;
pub(super) mod text;

pub(super) use check::figure;
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
    /// Data set: digits (generated), idx:DIR (MNIST format), cifar:DIR (CIFAR-10 binary files), images:DIR (one subdirectory per class),
    /// tfrecord:FILES_OR_DIR, webdataset:FILES_OR_DIR (tar files), npy:DIR (NumPy arrays), csv:FILES, parquet:FILES, arrow:FILES, text:FILES or
    /// service:HOST:PORT,… (servers started by serve-data). FILES is a comma-separated list of files or patterns, such as train-*.tar or
    /// train-{000..119}.tar. A file or directory may also be s3://BUCKET/FOLDER_OR_OBJECT or https://HOST/FILE
    #[arg(long, default_value = "digits")]
    #[serde(with = "text")]
    pub data: Source,
    /// Cache directory for files of remote data sets [default: unisono-data-cache-UID in the temporary directory of the system]
    #[arg(long, value_name = "DIR")]
    pub data_cache: Option<PathBuf>,
    /// Column of numbers to predict by regression, with --data csv:, parquet: or arrow: [default: classification by the column `label` or the last
    /// column]
    #[arg(long, value_name = "COLUMN")]
    pub target: Option<String>,
    /// Characters per text sample
    #[arg(long, default_value = "64", value_name = "N")]
    pub context: usize,
    /// Read the images of images:, tfrecord: and webdataset: in colour (yes) or in greyscale (no) [default: in colour if any image is]
    #[arg(long, value_name = "YES_OR_NO", num_args = 0..=1, default_missing_value = "yes")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub colour: Option<bool>,
    /// Resize and crop the images of images:, tfrecord: and webdataset: to this height and width in pixels, such as 64 or 64x48 [default: the
    /// medians]
    #[arg(long, value_name = "HxW")]
    #[serde(with = "text::option")]
    pub image_size: Option<ImageSize>,
    /// Normalise images by the mean and standard deviation of each channel, such as 0.485,0.456,0.406/0.229,0.224,0.225, or measured [default:
    /// measured for images:, tfrecord: and webdataset:, 0.1307/0.3081 (MNIST) for others]
    #[arg(long, value_name = "MEANS/DEVIATIONS")]
    #[serde(with = "text::option")]
    pub normalize: Option<Normalize>,
    /// Augment training images by random transforms, comma-separated: affine (shifts and rotations), crop, mirror, jitter (of colours) and erase,
    /// optionally with amounts, as in crop:4 [default of --augment alone: mirror,crop for cifar:, affine for others]
    #[arg(long, value_name = "TRANSFORMS", num_args = 0..=1, default_missing_value = "usual")]
    #[serde(with = "text::option")]
    pub augment: Option<Augment>,
    /// Cache the decoded images of images:, tfrecord: and webdataset: in this directory, for all epochs and later runs
    #[arg(long, value_name = "DIR")]
    pub snapshot: Option<PathBuf>,
    /// Compression of the snapshot: none or lz4
    #[arg(long, default_value = "none", value_name = "NAME")]
    #[serde(with = "text")]
    pub snapshot_compression: Compression,
    /// Random seed
    #[arg(long, default_value = "0", value_name = "N")]
    pub seed: u64,
    /// Policy for damaged images: error, skip (omit and report them) or skip:N (at most N per rank)
    #[arg(long, default_value = "error", value_name = "POLICY")]
    #[serde(with = "text")]
    pub on_bad_sample: OnBadSample,
    /// Memory limit in bytes for prepared batches per rank, such as 512M [default: no limit]
    #[arg(long, value_name = "BYTES")]
    #[serde(with = "text::option")]
    pub input_memory: Option<Size>,
    /// File with the token of the data servers, with --data service:
    #[arg(long, value_name = "FILE")]
    pub data_token_file: Option<PathBuf>,
    /// Input pipeline threads per rank [default: adjusted at run time]
    #[arg(long, value_name = "N")]
    pub input_threads: Option<usize>,
    /// Number of steps whose batches are prefetched [default: adjusted at run time]
    #[arg(long, value_name = "N")]
    pub prefetch: Option<usize>,
    /// Model: mlp, cnn or resnet for images, mlp for tables, transformer for text [default: mlp or transformer]
    #[arg(long, default_value = "mlp")]
    #[serde(with = "text")]
    pub model: ModelKind,
    /// Widths of the hidden layers of the MLP, or of the blocks of the resnet or the transformer, comma-separated
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub hidden: Option<Vec<usize>>,
    /// Dropout probability of the MLP or the transformer, from 0 to below 1
    #[arg(long, default_value = "0", value_name = "P")]
    pub dropout: f64,
    /// Safetensors file of a model or a checkpoint, with the initial values of parameters of the same names
    #[arg(long, value_name = "FILE")]
    pub initial: Option<PathBuf>,
    /// Number of epochs [default: depends on the model]
    #[arg(long, default_value = "10", value_name = "N")]
    pub epochs: usize,
    /// Micro-batch size: samples per rank and pass [default: depends on the model]
    #[arg(long, default_value = "64", value_name = "PER_RANK")]
    pub batch_size: usize,
    /// Global batch size: samples per step over all ranks; gradients are accumulated over several passes if necessary [default: one pass per rank, or
    /// the value of the resumed run]
    #[arg(long, value_name = "N")]
    pub global_batch: Option<usize>,
    /// Device: cpu, cuda, or auto (GPUs if every rank has one, otherwise the CPU)
    #[arg(long, default_value = "auto")]
    #[serde(with = "text")]
    pub device: DeviceKind,
    /// Optimizer, optionally with hyperparameters, such as adamw:beta2=0.95,amsgrad=true [default: depends on the model]
    #[arg(long, default_value = "sgd")]
    #[serde(with = "text")]
    pub optimizer: NamedRule,
    /// Learning rate for the default global batch of the model; scaled to the actual global batch [default: depends on the model]
    #[arg(long, default_value = "0.1", value_name = "RATE")]
    pub learning_rate: f64,
    /// Learning rate schedule after warm-up: constant, step or cosine
    #[arg(long, default_value = "cosine")]
    #[serde(with = "text")]
    pub schedule: ScheduleKind,
    /// Epochs between reductions of the learning rate, with --schedule step
    #[arg(long, default_value = "3", value_name = "EPOCHS")]
    pub step_epochs: usize,
    /// Factor of each reduction of the learning rate, with --schedule step
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
    /// Evaluate and save an exponential moving average of the parameters with this decay per step, such as 0.999
    #[arg(long, value_name = "DECAY")]
    pub ema: Option<f32>,
    /// Clip the norm of the mean gradient to this value [default: no clipping]
    #[arg(long, value_name = "NORM")]
    pub clip_norm: Option<f64>,
    /// Distribution strategy: one-device (a single rank), mirrored (all ranks of one node hold the same model), multi-worker-mirrored (mirrored over
    /// any number of nodes), central-storage (the ranks of one node share one copy of the parameters, the gradients and the optimizer state),
    /// parameter-server (some ranks hold the parameters, the others compute gradients) or pipeline (each rank holds a stage of the model, and
    /// micro-batches pass through the stages) [default: one-device, mirrored or multi-worker-mirrored, depending on the number of ranks and nodes]
    #[arg(long, value_name = "STRATEGY")]
    #[serde(with = "text::option")]
    pub strategy: Option<Strategy>,
    /// Number of servers, with --strategy parameter-server: the first N ranks; the others are workers
    #[arg(long, default_value = "1", value_name = "N")]
    pub servers: usize,
    /// Maximum staleness of gradients in steps, with --strategy parameter-server: 0 (synchronous), a number, or unbounded
    #[arg(long, default_value = "0", value_name = "STEPS")]
    #[serde(with = "text")]
    pub staleness: Staleness,
    /// Continue without a lost worker, and let it rejoin after a restart, with --strategy parameter-server under unisono launch --elastic
    #[arg(long)]
    pub elastic: bool,
    /// Scale the learning rate of a gradient that missed the updates of n steps by 1/(1+n), with --staleness
    #[arg(long)]
    pub damp_stale: bool,
    /// Number of ranks per pipeline, with --strategy pipeline; several pipelines are replicas of each other [default: all ranks]
    #[arg(long, value_name = "N")]
    pub stages: Option<usize>,
    /// Number of micro-batches per pipeline and step, with --strategy pipeline [default: 4 per rank of the pipeline]
    #[arg(long, value_name = "N")]
    pub micro_batches: Option<usize>,
    /// Order of the passes, with --strategy pipeline: gpipe, 1f1b or interleaved:STAGES (STAGES per rank)
    #[arg(long, default_value = "1f1b", value_name = "SCHEDULE")]
    #[serde(with = "text")]
    pub pipeline_schedule: PipelineSchedule,
    /// First layers of all stages except the first, comma-separated, with --strategy pipeline [default: balanced by measured times]
    #[arg(long, value_name = "LAYER,LAYER", value_delimiter = ',')]
    pub split_at: Option<Vec<String>>,
    /// All-reduce algorithm, or rules by size, such as "tree:0-8K;ring:8K-" [default: UNISONO_ALGORITHM, or auto if it is not set]
    #[arg(long)]
    #[serde(with = "text::option")]
    pub algorithm: Option<Choice>,
    /// Wire format of gradients: f32, bf16, f16, or, between nodes only, int8, int4, int8:stochastic, int4:stochastic, onebit, topk:FRACTION,
    /// threshold:MAGNITUDE or powersgd:RANK; auto: chooses the format with the lowest predicted time from a list, such as auto:f32,bf16,int8
    #[arg(long, default_value = "f32", value_name = "FORMAT")]
    #[serde(with = "text")]
    pub wire: Wires,
    /// Number of initial steps that send gradients as f32 despite a compressed --wire, to reach the same loss in fewer steps
    #[arg(long, default_value = "0", value_name = "N")]
    pub uncompressed_steps: u64,
    /// Overlap of the gradient all-reduce: beside (with the backward pass), across (with the backward pass and the next forward pass), in-turn (no
    /// overlap) or auto (beside between nodes, in-turn on one node)
    #[arg(long, default_value = "auto")]
    #[serde(with = "text")]
    pub overlap: Overlap,
    /// Bucket size in bytes of gradients per all-reduce; auto is 25M on one node, and between nodes the smallest size whose predicted time is close
    /// to the minimum
    #[arg(long, default_value = "auto", value_name = "BYTES")]
    #[serde(with = "text")]
    pub bucket_bytes: BucketBytes,
    /// Shard the optimizer state and the update across ranks (ZeRO stage 1); results are bit-identical
    #[arg(long)]
    pub shard_optimizer: bool,
    /// Number of local steps between averages of the parameters (local SGD), instead of reducing the gradients of every step
    #[arg(long, value_name = "N")]
    pub local_steps: Option<u64>,
    /// Outer step after each round of --local-steps: average, or nesterov:RATE,MOMENTUM (DiLoCo)
    #[arg(long, default_value = "average", value_name = "STEP")]
    #[serde(with = "text")]
    pub outer: Outer,
    /// Order of additions: free (fastest; results may depend on the number of ranks) or world-invariant (bit-identical results on any number of ranks
    /// that divides --shards)
    #[arg(long, default_value = "free")]
    #[serde(with = "text")]
    pub order: Order,
    /// Number of shards per step, with --order world-invariant: a power of two and a multiple of the number of ranks
    #[arg(long, default_value = "8", value_name = "N")]
    pub shards: usize,
    /// Verify every STEPS steps that all replicas are identical
    #[arg(long, value_name = "STEPS")]
    pub verify_replicas_every: Option<u64>,
    /// Compare the step times of all ranks every STEPS steps, and report a straggler
    #[arg(long, value_name = "STEPS")]
    pub straggler_every: Option<u64>,
    /// Evaluate on the held-out samples every STEPS steps, in addition to the end of every epoch
    #[arg(long, value_name = "STEPS")]
    pub evaluate_every: Option<u64>,
    /// Metrics of evaluations in addition to loss and accuracy, comma-separated: top-K (top-K accuracy) and f1 (macro F1) for classification, r2 and
    /// mae (mean absolute error in standard deviations of the target) for regression [default: none for classification, r2,mae for regression]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub metrics: Vec<Named>,
    /// Stop early after N consecutive evaluations that do not improve on the lowest loss
    #[arg(long, value_name = "N")]
    pub patience: Option<u32>,
    /// Minimum decrease of the loss that counts as an improvement, with --patience
    #[arg(long, default_value = "0", value_name = "NATS")]
    pub min_delta: f64,
    /// Directory of checkpoints; the end of the run is always saved
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Save a checkpoint every STEPS steps
    #[arg(long, value_name = "STEPS")]
    pub checkpoint_every: Option<u64>,
    /// Save a checkpoint SECONDS seconds after the previous one
    #[arg(long, default_value = "600", value_name = "SECONDS")]
    pub checkpoint_every_s: u64,
    /// Number of newest checkpoints to keep, in addition to the one with the lowest training loss or, with --patience, the lowest test loss
    #[arg(long, default_value = "3", value_name = "N")]
    pub keep: usize,
    /// Resume from the newest checkpoint, or start from the beginning if there is none, so that one command serves for starts and restarts
    #[arg(long)]
    pub resume: bool,
    /// Delete the checkpoints of another run in the directory and start from the beginning; such a directory is an error without this option or
    /// --resume
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
    /// Receives messages about downloads and about waits for data ([`unisono_data::Cache::report`]).
    #[arg(skip)]
    #[serde(skip)]
    pub report: Option<fn(&str)>,
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
        if let Source::Text(_) = source { ModelKind::Transformer } else { ModelKind::Mlp }
    }
}

#[cfg(test)]
mod tests;
