//! `unisono train`: a model, trained by all ranks together.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args as ClapArgs, ValueEnum};
use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::flag;
use unisono::config::share_cores;
use unisono::data::{Batch, Depth, Source, Threads};
use unisono::size;
use unisono::train::checkpoint::When;
use unisono::train::model::ModelKind;
use unisono::train::rate::ScheduleKind;
use unisono::train::{
    Checkpoints, DeviceKind, Falling, Feed, OptimizerKind, OptimizerSettings, Overlap, Replica, Settings,
    Stop, Summary, TrainError, Trainer, Wire,
};
use unisono::{Choice, Communicator};

use super::world::World;
use super::{Failure, Figures};

mod tell;

use tell::Teller;

/// What is trained, on what, and how.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    data: DataArgs,
    /// How often to go through the training samples; by default what suits the model
    #[arg(long, value_name = "N")]
    epochs: Option<usize>,
    /// How many samples each rank takes in a pass; by default what suits the model
    #[arg(long, value_name = "PER_RANK")]
    batch_size: Option<usize>,
    /// How many samples all ranks take together in a step, in as many passes as it needs; by default one pass of each
    #[arg(long, value_name = "N")]
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
    format: Figures,
    #[command(flatten)]
    world: World,
}

/// What is learnt, and by what.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Data and model")]
pub(super) struct DataArgs {
    /// digits (made by this program), idx:DIR (files in MNIST's format), images:DIR (a folder for each class),
    /// tfrecord:FILE_OR_DIR, csv:FILE or text:FILE
    #[arg(long, default_value = "digits")]
    data: Source,
    /// mlp or cnn for images, mlp for tables, transformer for text; by default mlp or transformer
    #[arg(long)]
    model: Option<ModelKind>,
    /// How many outputs each hidden layer of the MLP has
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    hidden: Option<Vec<usize>>,
    /// How many characters a sample of a text has
    #[arg(long, value_name = "N")]
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
    /// With the schedule step: after how many epochs the learning rate falls
    #[arg(long, value_name = "EPOCHS", default_value_t = 3)]
    step_epochs: usize,
    /// With the schedule step: what the learning rate is multiplied by
    #[arg(long, value_name = "FACTOR", default_value_t = 0.1)]
    step_factor: f64,
    /// The share of all steps in which the learning rate rises; by default what suits the model
    #[arg(long, value_name = "SHARE")]
    warm_up: Option<f64>,
    /// How strongly weights are drawn to zero; by default what suits the model
    #[arg(long, value_name = "RATE")]
    weight_decay: Option<f32>,
    /// The momentum of sgd
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    momentum: f32,
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
    #[arg(long)]
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
    /// number of ranks
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    shards: u16,
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
    pub(super) fn settings(&self) -> Settings {
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
    fn settings(&self) -> Settings {
        let Self { learning, gradients, state, .. } = self;
        let usual = self.data.settings();
        let optimizer = OptimizerSettings {
            kind: learning.optimizer.unwrap_or(usual.optimizer.kind),
            momentum: learning.momentum,
            nesterov: learning.nesterov,
            weight_decay: learning.weight_decay.unwrap_or(usual.optimizer.weight_decay),
            ..usual.optimizer
        };
        let schedule = match learning.schedule {
            ScheduleKind::Constant => Falling::Constant,
            ScheduleKind::Step => {
                Falling::Step { epochs: learning.step_epochs, factor: learning.step_factor }
            }
            ScheduleKind::Cosine => Falling::Cosine,
        };
        let every = Some(Duration::from_secs(state.checkpoint_every_s));
        let checkpoints = state.checkpoint_dir.clone().map(|directory| Checkpoints {
            directory,
            keep: state.keep.into(),
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
            world_invariant: (gradients.order == OrderArg::WorldInvariant).then_some(gradients.shards.into()),
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

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let settings = args.settings();
    heed_signals(&settings.stop)?;
    // SAFETY: the command line was read, and nothing has started a thread yet.
    unsafe { share_cores(args.world.local_ranks()) };
    args.world.run(|comm| on_rank(comm, args, &settings))
}

/// Has signals ask the run to stop. Before anything else, for until then they end this process. A launcher passes them on to
/// ranks, and one rank that is asked is enough.
fn heed_signals(stop: &Stop) -> Result<(), Failure> {
    for signal in [SIGTERM, SIGUSR1] {
        let registered = flag::register(signal, stop.flag());
        registered.map_err(|error| Failure::Error(format!("signal {signal} cannot be heeded: {error}")))?;
    }
    Ok(())
}

fn on_rank(comm: &mut Communicator, args: &Args, settings: &Settings) -> Result<(), Failure> {
    if let Some(choice) = args.gradients.algorithm.clone() {
        let chosen = comm.set_choice(choice);
        chosen.map_err(|error| bad_input(comm.rank(), error.to_string()))?;
    }
    let summary = train(comm, args.format, settings).map_err(failure)?;
    if summary.stopped.is_some() { Err(Failure::Stopped) } else { Ok(()) }
}

/// How a command fails if the trainer does.
pub(super) fn failure(error: TrainError) -> Failure {
    match error {
        TrainError::Elsewhere { .. } => Failure::SaidElsewhere,
        error if error.is_bad_input() => Failure::BadInput(error.to_string()),
        error => Failure::Error(error.to_string()),
    }
}

/// What every rank finds wrong, said by one of them.
pub(super) fn bad_input(rank: usize, message: String) -> Failure {
    if rank == 0 { Failure::BadInput(message) } else { Failure::SaidElsewhere }
}

/// Trains; rank 0 tells how it goes.
fn train(comm: &mut Communicator, format: Figures, settings: &Settings) -> Result<Summary, TrainError> {
    let (rank, ranks, transport) = (comm.rank(), comm.ranks(), comm.transport());
    let mut trainer = settings.trainer(comm)?;
    if rank != 0 {
        return trainer.run(|_| ());
    }
    if format == Figures::Human {
        let ran = trainer.all_reduce();
        println!("{}", opening(&mut trainer, settings));
        if let Some(computes) = trainer.computes() {
            println!("{computes}");
        }
        let by = match ran {
            Some(ran) => format!("by {}: {}", ran.algorithm, ran.why),
            None => "in the memory of their GPUs".to_owned(),
        };
        println!("{ranks} ranks over {transport}, all-reduce {by}");
    }
    let started = Instant::now();
    let mut teller = Teller::new(format, settings.epochs);
    let summary = trainer.run(|event| teller.tell(&event))?;
    teller.done(&summary, started.elapsed().as_secs_f64());
    Ok(summary)
}

fn opening<R: Replica<Batch = Batch>, F: Feed<Batch = Batch>>(
    trainer: &mut Trainer<'_, R, F>,
    settings: &Settings,
) -> String {
    let Settings { source, model, optimizer, .. } = settings;
    let samples = trainer.sample_count().map_or(String::new(), |samples| format!("{samples} samples in "));
    format!(
        "{model} of {} parameters on {source}, {samples}batches of {}; {} at up to {:.3e}",
        trainer.parameter_count(),
        trainer.global_batch(),
        optimizer.kind,
        trainer.rate().peak()
    )
}
