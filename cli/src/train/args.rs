//! What the command line of `unisono train` says.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use unisono::Choice;
use unisono::size;
use unisono_data::{Depth, Source, Threads};
use unisono_train::checkpoint::When;
use unisono_train::model::ModelKind;
use unisono_train::rate::ScheduleKind;
use unisono_train::{
    Checkpoints, DeviceKind, Falling, OptimizerKind, OptimizerSettings, Overlap, Settings, Wire,
};

use crate::Figures;
use crate::values::{named, whole};
use crate::world::World;

/// What is trained, on what, and how.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataArgs,
    /// How often to go through the training samples; by default what suits the model
    #[arg(long, value_name = "N", value_parser = whole(0, usize::MAX))]
    epochs: Option<usize>,
    /// How many samples each rank takes in a pass; by default what suits the model
    #[arg(long, value_name = "PER_RANK", value_parser = whole(0, usize::MAX))]
    batch_size: Option<usize>,
    /// How many samples all ranks take together in a step, in as many passes as it needs; by default one pass of each
    #[arg(long, value_name = "N", value_parser = whole(0, usize::MAX))]
    global_batch: Option<usize>,
    /// Where the model computes: auto, cpu or cuda; by default on GPUs if every rank finds one
    #[arg(long, default_value = "auto")]
    device: DeviceKind,
    #[command(flatten)]
    learning: LearningArgs,
    #[command(flatten)]
    gradients: GradientArgs,
    #[command(flatten)]
    state: StateArgs,
    /// How progress is told
    #[arg(long, default_value = "human")]
    pub(super) format: Figures,
    #[command(flatten)]
    pub(super) world: World,
}

/// What is learnt, and by what.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Data and model")]
struct DataArgs {
    /// digits (made by this program), idx:DIR (files in MNIST's format), images:DIR (a folder for each class),
    /// tfrecord:FILE_OR_DIR, csv:FILE or text:FILE
    #[arg(long, default_value = "digits")]
    data: Source,
    /// mlp or cnn for images, mlp for tables, transformer for text; by default mlp or transformer
    #[arg(long)]
    model: Option<ModelKind>,
    /// How many outputs each hidden layer of the MLP has
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = whole(0, usize::MAX))]
    hidden: Option<Vec<usize>>,
    /// How many characters a sample of a text has
    #[arg(long, value_name = "N", value_parser = whole(0, usize::MAX))]
    context: Option<usize>,
    /// Shift, turn and mirror images in files, each time another way
    #[arg(long)]
    augment: bool,
    /// How many threads of each rank make batches; by default as many as help
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    input_threads: Option<u16>,
    /// How many steps' batches lie ready; by default as many as help
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    prefetch: Option<u16>,
    /// Where all randomness comes from
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Learning")]
struct LearningArgs {
    /// sgd or adamw; by default what suits the model
    #[arg(long)]
    optimizer: Option<OptimizerKind>,
    /// The learning rate for the model's usual global batch, to which it is scaled; by default what suits the model
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,
    /// constant, step or cosine, after warm-up
    #[arg(long, default_value = "cosine")]
    schedule: ScheduleKind,
    /// With the schedule step: after how many epochs the learning rate falls; by default 3
    #[arg(long, value_name = "EPOCHS", value_parser = whole(0, usize::MAX))]
    step_epochs: Option<usize>,
    /// With the schedule step: what the learning rate is multiplied by; by default 0.1
    #[arg(long, value_name = "FACTOR")]
    step_factor: Option<f64>,
    /// The share of all steps in which the learning rate rises; by default what suits the model
    #[arg(long, value_name = "SHARE")]
    warm_up: Option<f64>,
    /// How strongly weights are drawn to zero; by default what suits the model
    #[arg(long, value_name = "RATE")]
    weight_decay: Option<f32>,
    /// The momentum of sgd; by default 0.9
    #[arg(long, value_name = "SHARE")]
    momentum: Option<f32>,
    /// Nesterov's momentum, with sgd
    #[arg(long)]
    nesterov: bool,
    /// The greatest norm that the mean gradient may have; by default any
    #[arg(long, value_name = "NORM")]
    clip_norm: Option<f64>,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Gradients")]
struct GradientArgs {
    /// The all-reduce algorithm, auto, mpi, or rules by size such as "tree:0-8K;ring:8K-"; by default
    /// UNISONO_ALGORITHM, or else auto
    #[arg(long, value_parser = named(Choice::names(), str::parse::<Choice>))]
    algorithm: Option<Choice>,
    /// The format in which gradients are sent: f32, bf16 or f16
    #[arg(long, default_value = "f32")]
    wire: Wire,
    /// Whether gradients travel beside the backward pass: auto, beside or in-turn
    #[arg(long, default_value = "auto")]
    overlap: Overlap,
    /// How many bytes of gradients travel together
    #[arg(long, value_name = "BYTES", default_value = "25M", value_parser = bytes)]
    bucket_bytes: usize,
    /// Whether the order of additions, and so the result, may depend on the number of ranks
    #[arg(long, default_value = "free")]
    order: OrderArg,
    /// With --order world-invariant: into how many parts each step is divided; a power of two, and a multiple of the
    /// number of ranks; by default 8
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    shards: Option<u16>,
    /// Hold all replicas against each other after every so many steps
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    verify_replicas_every: Option<u64>,
    /// Compare the times of all ranks after every so many steps, and name one that the others wait for
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    straggler_every: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OrderArg {
    /// Whatever is fastest
    Free,
    /// The same bits at any number of ranks that divides the parts of a step
    WorldInvariant,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Checkpoints and logs")]
struct StateArgs {
    /// Save checkpoints to this directory, at the end in any case
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,
    /// Save one after every so many steps
    #[arg(long, value_name = "STEPS", requires = "checkpoint_dir", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
    /// Save one when so many seconds have gone by since the last
    #[arg(long, value_name = "SECONDS", requires = "checkpoint_dir", default_value_t = 600)]
    checkpoint_every_s: u64,
    /// Keep so many
    #[arg(long, value_name = "N", requires = "checkpoint_dir", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    keep: u16,
    /// Go on from the newest checkpoint there, if there is one: the same command then serves for the first start and all others
    #[arg(long, requires = "checkpoint_dir")]
    resume: bool,
    /// Remove the checkpoints of another run that are there, and begin; without this and --resume they are left alone, and the
    /// run is refused
    #[arg(long, requires = "checkpoint_dir", conflicts_with = "resume")]
    overwrite: bool,
    /// Write curves for TensorBoard to this directory
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Write what all ranks did when to this file, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

fn bytes(text: &str) -> Result<usize, String> {
    size::bytes(text).ok_or_else(|| "expected a number of bytes, such as 65536, 64K or 25M".to_owned())
}

impl DataArgs {
    /// What suits this data and this model, as far as nothing else is said.
    fn settings(&self) -> Settings {
        let model = self.model.unwrap_or_else(|| Settings::default_model(&self.data));
        let usual = Settings::new(self.data.clone(), model);
        Settings {
            hidden: self.hidden.clone(),
            context: self.context.unwrap_or(usual.context),
            augments: self.augment,
            input_threads: self.input_threads.map_or(Threads::Auto, |threads| Threads::Fixed(threads.into())),
            prefetch: self.prefetch.map_or(Depth::Auto, |depth| Depth::Fixed(depth.into())),
            seed: self.seed,
            ..usual
        }
    }
}

impl Args {
    /// The algorithm that is named.
    pub(super) fn algorithm(&self) -> Option<Choice> {
        self.gradients.algorithm.clone()
    }

    /// What is said on the command line and would change nothing.
    pub(super) fn without_effect(&self, settings: &Settings) -> Option<String> {
        let Self { data, learning, gradients, .. } = self;
        let has_files = matches!(data.data, Source::TfRecord(_) | Source::Images(_));
        let is_free = gradients.order == OrderArg::Free;
        let (is_sgd, is_step) =
            (settings.optimizer.kind == OptimizerKind::Sgd, learning.schedule == ScheduleKind::Step);
        let pointless = [
            (
                "--context",
                "--data text:FILE",
                data.context.is_some() && !matches!(data.data, Source::Text(_)),
            ),
            ("--augment", "--data images:DIR or tfrecord:FILE_OR_DIR", data.augment && !has_files),
            ("--shards", "--order world-invariant", gradients.shards.is_some() && is_free),
            ("--nesterov", "--optimizer sgd", learning.nesterov && !is_sgd),
            ("--momentum", "--optimizer sgd", learning.momentum.is_some() && !is_sgd),
            ("--step-epochs", "--schedule step", learning.step_epochs.is_some() && !is_step),
            ("--step-factor", "--schedule step", learning.step_factor.is_some() && !is_step),
            ("--hidden", "--model mlp", data.hidden.is_some() && settings.model != ModelKind::Mlp),
        ];
        let (option, needs, _) = pointless.into_iter().find(|(_, _, is_so)| *is_so)?;
        Some(format!("{option} has no effect without {needs}: leave it out, or say that too"))
    }

    pub(super) fn settings(&self) -> Settings {
        let Self { learning, gradients, state, .. } = self;
        let usual = self.data.settings();
        let optimizer = OptimizerSettings {
            kind: learning.optimizer.unwrap_or(usual.optimizer.kind),
            momentum: learning.momentum.unwrap_or(usual.optimizer.momentum),
            nesterov: learning.nesterov,
            weight_decay: learning.weight_decay.unwrap_or(usual.optimizer.weight_decay),
            ..usual.optimizer
        };
        let schedule = match learning.schedule {
            ScheduleKind::Constant => Falling::Constant,
            ScheduleKind::Step => {
                let (epochs, factor) =
                    (learning.step_epochs.unwrap_or(3), learning.step_factor.unwrap_or(0.1));
                Falling::Step { epochs, factor }
            }
            ScheduleKind::Cosine => Falling::Cosine,
        };
        let every = Some(Duration::from_secs(state.checkpoint_every_s));
        let checkpoints = state.checkpoint_dir.clone().map(|directory| Checkpoints {
            directory,
            keep: state.keep.into(),
            overwrites: state.overwrite,
            when: When { every_steps: state.checkpoint_every, every },
        });
        Settings {
            epochs: self.epochs.unwrap_or(usual.epochs),
            batch_size: self.batch_size.unwrap_or(usual.batch_size),
            global_batch: self.global_batch,
            optimizer,
            learning_rate: learning.learning_rate.unwrap_or(usual.learning_rate),
            schedule,
            warm_up: learning.warm_up.unwrap_or(usual.warm_up),
            clip_norm: learning.clip_norm,
            device: self.device,
            wire: gradients.wire,
            overlap: gradients.overlap,
            bucket_bytes: gradients.bucket_bytes,
            world_invariant: (gradients.order == OrderArg::WorldInvariant)
                .then_some(gradients.shards.unwrap_or(8).into()),
            verify_replicas_every: gradients.verify_replicas_every,
            straggler_every: gradients.straggler_every,
            checkpoints,
            resumes: state.resume,
            log_directory: state.log_dir.clone(),
            trace: state.trace.clone(),
            ..usual
        }
    }
}
