//! The command line of `unisono train`.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use unisono::Choice;
use unisono_train::checkpoint::When;
use unisono_train::metrics::{Metrics, Named, Regression};
use unisono_train::model::ModelKind;
use unisono_train::optimizer::{self, Averaged, UpdateRule};
use unisono_train::rate::ScheduleKind;
use unisono_train::{
    BucketBytes, Checkpoints, DeviceKind, EarlyStopping, Falling, LocalSteps, OptimizerSettings, Outer,
    Overlap, Settings, Sgd, Wire, Wires,
};

use super::source::{SourceArgs, first_pointless};
use super::strategy::{StrategyArg, StrategyArgs};
use crate::Figures;
use crate::values::{named, whole};
use crate::world::World;

/// The options that `-h` shows, which change from run to run; `--help` shows all.
pub(crate) const USUAL: [&str; 26] = [
    "data",
    "target",
    "colour",
    "augment",
    "seed",
    "input_threads",
    "model",
    "hidden",
    "epochs",
    "batch_size",
    "global_batch",
    "device",
    "optimizer",
    "learning_rate",
    "schedule",
    "weight_decay",
    "strategy",
    "wire",
    "metrics",
    "patience",
    "checkpoint_dir",
    "resume",
    "overwrite",
    "log_dir",
    "format",
    "threads",
];

/// What to train, on which data, and how.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataArgs,
    /// Number of epochs [default: depends on the model]
    #[arg(long, value_name = "N", value_parser = whole(0, usize::MAX))]
    epochs: Option<usize>,
    /// Micro-batch size: samples per rank and pass [default: depends on the model]
    #[arg(long, value_name = "PER_RANK", value_parser = whole(0, usize::MAX))]
    batch_size: Option<usize>,
    /// Global batch size: samples per step over all ranks; gradients accumulate over several passes if needed
    /// [default: one pass per rank]
    #[arg(long, value_name = "N", value_parser = whole(0, usize::MAX))]
    global_batch: Option<usize>,
    /// Device: cpu, cuda, or auto for GPUs if every rank finds one
    #[arg(long, default_value = "auto")]
    device: DeviceKind,
    #[command(flatten)]
    learning: LearningArgs,
    #[command(flatten)]
    strategy: StrategyArgs,
    #[command(flatten)]
    gradients: GradientArgs,
    #[command(flatten)]
    evaluation: EvaluationArgs,
    #[command(flatten)]
    state: StateArgs,
    /// Output format
    #[arg(long, default_value = "human")]
    pub(super) format: Figures,
    #[command(flatten)]
    pub(super) world: World,
}

/// The data set and the model.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Data and model")]
struct DataArgs {
    #[command(flatten)]
    input: SourceArgs,
    /// Model: mlp, cnn or resnet for images, mlp for tables, transformer for text [default: mlp or transformer]
    #[arg(long)]
    model: Option<ModelKind>,
    /// Widths of the hidden layers of the MLP, or of the blocks of the resnet, comma-separated
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = whole(0, usize::MAX))]
    hidden: Option<Vec<usize>>,
    /// Probability with which hidden values of the MLP or the transformer are dropped in training, from 0 to below 1
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    dropout: f64,
    /// Safetensors file, of a model or a checkpoint, with the values that parameters of the same names begin with
    #[arg(long, value_name = "FILE")]
    initial: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Learning")]
struct LearningArgs {
    /// Optimizer, perhaps with its constants, such as adamw:beta2=0.95,amsgrad=true [default: depends on the model]
    #[arg(long, value_parser = named(optimizer::names(), optimizer::by_name))]
    optimizer: Option<Arc<dyn UpdateRule>>,
    /// Learning rate for the model's usual global batch; scaled to the actual one [default: depends on the model]
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,
    /// Learning rate schedule after warm-up: constant, step or cosine
    #[arg(long, default_value = "cosine")]
    schedule: ScheduleKind,
    /// Epochs between drops of the learning rate, with --schedule step [default: 3]
    #[arg(long, value_name = "EPOCHS", value_parser = whole(0, usize::MAX))]
    step_epochs: Option<usize>,
    /// Factor by which the learning rate drops, with --schedule step [default: 0.1]
    #[arg(long, value_name = "FACTOR")]
    step_factor: Option<f64>,
    /// Fraction of all steps spent on warm-up [default: depends on the model]
    #[arg(long, value_name = "SHARE")]
    warm_up: Option<f64>,
    /// Weight decay [default: depends on the model]
    #[arg(long, value_name = "RATE")]
    weight_decay: Option<f32>,
    /// Momentum, with --optimizer sgd [default: 0.9]
    #[arg(long, value_name = "SHARE")]
    momentum: Option<f32>,
    /// Use Nesterov momentum, with --optimizer sgd
    #[arg(long)]
    nesterov: bool,
    /// Evaluate and save an exponential moving average of the parameters, which every step decays by this factor, such as 0.999
    #[arg(long, value_name = "DECAY")]
    ema: Option<f32>,
    /// Clip the norm of the mean gradient to this value [default: no clipping]
    #[arg(long, value_name = "NORM")]
    clip_norm: Option<f64>,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Gradients")]
struct GradientArgs {
    /// All-reduce algorithm, auto, mpi, or rules by size, such as "tree:0-8K;ring:8K-" [default:
    /// UNISONO_ALGORITHM, or auto if it is not set]
    #[arg(long, value_parser = named(Choice::names(), str::parse::<Choice>))]
    algorithm: Option<Choice>,
    /// Wire format of gradients: f32, bf16, f16, or, between nodes alone, int8, int4, int8:stochastic, int4:stochastic, onebit,
    /// topk:FRACTION, threshold:MAGNITUDE or powersgd:RANK; or that of several which is predicted to be the fastest, such as
    /// auto:f32,bf16,int8
    #[arg(long, value_name = "FORMAT", default_value = "f32")]
    wire: Wires,
    /// Send gradients as f32 in the first N steps, with a --wire that compresses them: the same loss in fewer steps [default: 0]
    #[arg(long, value_name = "N")]
    uncompressed_steps: Option<u64>,
    /// Gradient all-reduce: beside (overlaps the backward pass), across (and the next forward pass), in-turn (follows it) or auto
    #[arg(long, default_value = "auto")]
    overlap: Overlap,
    /// Bucket size: bytes of gradients per all-reduce; auto is 25M on one node, and between nodes the smallest that is
    /// predicted to be about as cheap
    #[arg(long, value_name = "BYTES", default_value = "auto")]
    bucket_bytes: BucketBytes,
    /// Divide the update and the optimizer state among the ranks, each with its part of the parameters (ZeRO stage 1); the
    /// result has the same bits
    #[arg(long)]
    shard_optimizer: bool,
    /// Step alone N times, then average parameters: another algorithm, which communicates less (local SGD)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    local_steps: Option<u64>,
    /// The end of a round, with --local-steps: average, or nesterov:RATE,MOMENTUM (DiLoCo) [default: average]
    #[arg(long, value_name = "STEP")]
    outer: Option<Outer>,
    /// Order of additions: whether the result may depend on the number of ranks
    #[arg(long, default_value = "free")]
    order: OrderArg,
    /// Shards per step, with --order world-invariant: a power of two and a multiple of the number of ranks
    /// [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    shards: Option<u16>,
    /// Check every STEPS steps that all replicas are identical
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    verify_replicas_every: Option<u64>,
    /// Compare the step times of all ranks every STEPS steps, and report a straggler
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    straggler_every: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OrderArg {
    /// The fastest order; results may depend on the number of ranks
    Free,
    /// The same bits on any number of ranks that divides --shards
    WorldInvariant,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Evaluation")]
struct EvaluationArgs {
    /// Evaluate on the held-out samples every STEPS steps, besides the end of every epoch
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    evaluate_every: Option<u64>,
    /// What else to measure in evaluations, comma-separated: top-K (the accuracy if any of K guesses may be right), f1 (macro F1);
    /// of a regression r2 and mae (the mean absolute error in standard deviations of the target)
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    metrics: Vec<Named>,
    /// End after N evaluations in a row whose loss was not less than the least before them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    patience: Option<u32>,
    /// With --patience: how much less the loss must be to count [default: 0]
    #[arg(long, value_name = "NATS", requires = "patience")]
    min_delta: Option<f64>,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Checkpoints and logs")]
struct StateArgs {
    /// Directory for checkpoints; one is always saved at the end
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,
    /// Save a checkpoint every STEPS steps
    #[arg(long, value_name = "STEPS", requires = "checkpoint_dir", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
    /// Save a checkpoint when SECONDS have passed since the last
    #[arg(long, value_name = "SECONDS", requires = "checkpoint_dir", default_value_t = 600)]
    checkpoint_every_s: u64,
    /// Number of newest checkpoints to keep; the one with the lowest training loss is kept besides
    #[arg(long, value_name = "N", requires = "checkpoint_dir", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    keep: u16,
    /// Resume from the newest checkpoint, or start afresh if there is none: one command for the first start and every restart
    #[arg(long, requires = "checkpoint_dir")]
    resume: bool,
    /// Delete the checkpoints of another run in the directory and start afresh; without this or --resume the command refuses
    /// such a directory
    #[arg(long, requires = "checkpoint_dir", conflicts_with = "resume")]
    overwrite: bool,
    /// Write TensorBoard curves to this directory
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Write a timeline of all ranks to this file, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl GradientArgs {
    /// The wire formats that the run may use, at least one.
    fn wires(&self) -> &[Wire] {
        match &self.wire {
            Wires::One(wire) => std::slice::from_ref(wire),
            Wires::Auto(wires) => wires,
        }
    }
}

impl LearningArgs {
    /// The optimizer, with the constants that are given.
    fn optimizer(&self, usual: &OptimizerSettings) -> OptimizerSettings {
        let mut rule = self.optimizer.clone().unwrap_or_else(|| usual.rule.clone());
        if let Some(&Sgd { momentum, nesterov }) = (&*rule as &dyn Any).downcast_ref() {
            let momentum = self.momentum.unwrap_or(momentum);
            rule = Arc::new(Sgd { momentum, nesterov: nesterov || self.nesterov });
        }
        if let Some(decay) = self.ema {
            rule = Arc::new(Averaged::new(rule, decay));
        }
        let weight_decay = self.weight_decay.unwrap_or(usual.weight_decay);
        OptimizerSettings { rule, weight_decay, ..usual.clone() }
    }
}

impl DataArgs {
    /// The settings of the data options, with defaults that suit the data and the model.
    fn settings(&self) -> Settings {
        Settings { hidden: self.hidden.clone(), dropout: self.dropout, ..self.input.settings(self.model) }
    }
}

impl Args {
    /// Whether the run goes on without workers that are lost.
    pub(super) fn is_elastic(&self) -> bool {
        self.strategy.elastic
    }

    /// The algorithm named by `--algorithm`.
    pub(super) fn algorithm(&self) -> Option<Choice> {
        self.gradients.algorithm.clone()
    }

    /// The error for an option that would have no effect.
    pub(super) fn without_effect(&self, settings: &Settings) -> Option<String> {
        const SERVER: &str = "--strategy parameter-server";
        const PIPELINE: &str = "--strategy pipeline";
        let Self { data, learning, strategy, gradients, .. } = self;
        let serves = strategy.strategy == Some(StrategyArg::ParameterServer);
        let is_cut = strategy.strategy == Some(StrategyArg::Pipeline);
        let is_free = gradients.order == OrderArg::Free;
        let (is_sgd, is_step) =
            (settings.optimizer.rule.name() == "sgd", learning.schedule == ScheduleKind::Step);
        let pointless = [
            ("--outer", "--local-steps N", gradients.outer.is_some() && gradients.local_steps.is_none()),
            (
                "--uncompressed-steps",
                "a --wire that compresses, such as int8",
                gradients.uncompressed_steps.is_some()
                    && !gradients.wires().iter().any(|wire| matches!(wire, Wire::Compressed(_))),
            ),
            ("--servers", SERVER, strategy.servers.is_some() && !serves),
            ("--staleness", SERVER, strategy.staleness.is_some() && !serves),
            ("--elastic", SERVER, strategy.elastic && !serves),
            ("--damp-stale", SERVER, strategy.damp_stale && !serves),
            ("--stages", PIPELINE, strategy.stages.is_some() && !is_cut),
            ("--micro-batches", PIPELINE, strategy.micro_batches.is_some() && !is_cut),
            ("--pipeline-schedule", PIPELINE, strategy.pipeline_schedule.is_some() && !is_cut),
            ("--split-at", PIPELINE, strategy.split_at.is_some() && !is_cut),
            ("--shards", "--order world-invariant", gradients.shards.is_some() && is_free),
            ("--nesterov", "--optimizer sgd", learning.nesterov && !is_sgd),
            ("--momentum", "--optimizer sgd", learning.momentum.is_some() && !is_sgd),
            ("--step-epochs", "--schedule step", learning.step_epochs.is_some() && !is_step),
            ("--step-factor", "--schedule step", learning.step_factor.is_some() && !is_step),
            (
                "--hidden",
                "--model mlp or resnet",
                data.hidden.is_some() && !matches!(settings.model, ModelKind::Mlp | ModelKind::ResNet),
            ),
        ];
        data.input.without_effect().or_else(|| first_pointless(&pointless))
    }

    /// The metrics that are asked for, or those that take the place of accuracy in a regression.
    fn metrics(&self, is_regression: bool) -> Metrics {
        let asked: Metrics = self.evaluation.metrics.iter().map(|Named(metric)| Arc::clone(metric)).collect();
        if is_regression && asked.is_empty() && self.strategy.strategy != Some(StrategyArg::ParameterServer) {
            return vec![Arc::new(Regression::R2), Arc::new(Regression::Mae)];
        }
        asked
    }

    pub(super) fn settings(&self) -> Settings {
        let Self { learning, strategy, gradients, evaluation, state, .. } = self;
        let usual = self.data.settings();
        let schedule = match learning.schedule {
            ScheduleKind::Constant => Falling::Constant,
            ScheduleKind::Step => Falling::Step {
                epochs: learning.step_epochs.unwrap_or(3),
                factor: learning.step_factor.unwrap_or(0.1),
            },
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
            initial: self.data.initial.clone(),
            optimizer: learning.optimizer(&usual.optimizer),
            learning_rate: learning.learning_rate.unwrap_or(usual.learning_rate),
            schedule,
            warm_up: learning.warm_up.unwrap_or(usual.warm_up),
            clip_norm: learning.clip_norm,
            device: self.device,
            wire: gradients.wires()[0],
            wires: if let Wires::Auto(wires) = &gradients.wire { wires.clone() } else { Vec::new() },
            uncompressed_steps: gradients.uncompressed_steps,
            strategy: strategy.strategy(),
            overlap: gradients.overlap,
            bucket_bytes: gradients.bucket_bytes,
            shard_optimizer: gradients.shard_optimizer,
            local_steps: gradients
                .local_steps
                .map(|steps| LocalSteps { steps, outer: gradients.outer.unwrap_or(Outer::Average) }),
            world_invariant: (gradients.order == OrderArg::WorldInvariant)
                .then_some(gradients.shards.unwrap_or(8).into()),
            verify_replicas_every: gradients.verify_replicas_every,
            straggler_every: gradients.straggler_every,
            evaluate_every: evaluation.evaluate_every,
            metrics: self.metrics(usual.target.is_some()),
            early_stopping: evaluation
                .patience
                .map(|patience| EarlyStopping { patience, min_delta: evaluation.min_delta.unwrap_or(0.0) }),
            checkpoints,
            resumes: state.resume,
            log_directory: state.log_dir.clone(),
            trace: state.trace.clone(),
            ..usual
        }
    }
}
