//! `unisono bench-step`: times a data-parallel training step, breaks down its time, and compares it with ranks that step concurrently without
//! communicating.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use serde::Serialize;
use unisono::config::share_cores;
use unisono::size;
use unisono::{Choice, Communicator, ReduceOp, Vendor};
use unisono_candle::model::{self, ModelKind, Placed};
use unisono_candle::{MemoryEstimate, Parameters};
use unisono_data::{Batch, Inputs, Kind};
use unisono_train::optimizer::{self, NamedRule};
use unisono_train::{
    BucketBytes, BucketSettings, LocalSteps, Mirror, OptimizerSettings, Outer, Overlap, Parameter, Replica,
    Share, Times, TrainError, Wire,
};

use super::output::Format;
use super::train::failure;
use super::values::{count, named};
use super::world::{SHARE_A_NODE, World};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Model to train, on synthetic images of 28x28 pixels, or on text for the transformer
    #[arg(long, default_value = "mlp")]
    model: ModelKind,
    /// Widths of the hidden layers or blocks, comma-separated, as for train [default: 1024,1024 for the MLP, otherwise as for train]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = count)]
    hidden: Option<Vec<usize>>,
    /// Characters per text sample, for the transformer [default: 128]
    #[arg(long, value_name = "N", value_parser = count)]
    context: Option<usize>,
    /// Samples per rank and step
    #[arg(long, value_name = "PER_RANK", default_value_t = 128, value_parser = count)]
    batch_size: usize,
    /// Number of measured steps, after a warm-up
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = count)]
    steps: usize,
    /// Overlap of the gradient all-reduce: beside (with the backward pass), across (with the backward pass and the next forward pass), in-turn (no
    /// overlap) or auto (beside between nodes, in-turn on one node)
    #[arg(long, default_value = "auto")]
    overlap: Overlap,
    /// Wire format of gradients: f32, bf16, f16, or, between nodes only, int8, int4, int8:stochastic, int4:stochastic, onebit, topk:FRACTION,
    /// threshold:MAGNITUDE or powersgd:RANK
    #[arg(long, default_value = "f32")]
    wire: Wire,
    /// Bucket size in bytes of gradients per all-reduce, or auto, as for train
    #[arg(long, value_name = "BYTES", default_value = "auto")]
    bucket_bytes: BucketBytes,
    /// Shard the optimizer state and the update across ranks, as for train
    #[arg(long)]
    shard_optimizer: bool,
    /// Number of local steps between averages of the parameters, as for train
    #[arg(long, value_name = "N")]
    local_steps: Option<NonZeroU64>,
    /// Optimizer, as for train
    #[arg(long, default_value = "sgd", value_parser = named(optimizer::names(), str::parse::<NamedRule>))]
    optimizer: NamedRule,
    /// All-reduce algorithm, as for train
    #[arg(long, value_parser = named(Choice::names(), str::parse::<Choice>))]
    algorithm: Option<Choice>,
    /// Output format
    #[arg(long, default_value = "table")]
    format: Format,
    #[command(flatten)]
    world: World,
}

/// Unmeasured steps at the start of a round, in which ranks also agree on the order of buckets.
const WARM_UP: usize = 8;
/// The number of rounds, each of independent steps and then communicating ones.
const ROUNDS: usize = 4;

/// The side of images, as in MNIST. Texts have as many distinct characters as an English one.
const SIDE: usize = 28;
const CLASSES: usize = 10;
const CHARACTERS: u8 = 65;
const CONTEXT: usize = 128;
const MLP: [usize; 2] = [1024, 1024];

/// The learning rate. Its value does not change the cost.
const RATE: f64 = 1e-3;

/// The means over rounds of the median step time of the slowest rank. Mean step times replace medians if steps cannot be timed one by one.
#[derive(Debug, Serialize)]
struct Row {
    framework: &'static str,
    model: &'static str,
    parameters: usize,
    ranks: usize,
    transport: &'static str,
    bucket_bytes: usize,
    buckets_because: &'static str,
    ms_per_step: f64,
    compute_ms: f64,
    hidden_communication_ms: f64,
    exposed_communication_ms: f64,
    update_ms: f64,
    /// The time of a step of ranks that step concurrently without communicating; `None` for one rank.
    independent_ms_per_step: Option<f64>,
    /// The fraction of the independent ranks' throughput that this step reaches.
    scaling_percent: Option<f64>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    // SAFETY: the command line has been read, and no thread has been started yet.
    unsafe { share_cores(args.world.local_ranks()) };
    args.world.run(|comm| {
        let (is_root, kind) = (comm.rank() == 0, args.kind());
        // All ranks detect invalid settings, but only the ranks of some nodes may lack memory.
        let of_all = |error: TrainError| match error {
            error if error.is_bad_input() => Failure::refusal(is_root, error),
            error => Failure::Error(error.to_string()),
        };
        let needs = prepare(comm, args, &kind).map_err(of_all)?;
        needs.check(comm).map_err(failure)?;
        let row = measure(comm, args, &kind).map_err(of_all)?;
        if is_root {
            output::rows(&[&row], args.format, || print_row(&row));
        }
        Ok(())
    })
}

impl Args {
    fn hidden(&self) -> Option<&[usize]> {
        let default = (self.model == ModelKind::Mlp).then_some(&MLP[..]);
        self.hidden.as_deref().or(default)
    }

    fn kind(&self) -> Kind {
        match self.model {
            ModelKind::Transformer => {
                let context = self.context.unwrap_or(CONTEXT);
                Kind::Text { context, vocabulary: (0..CHARACTERS).map(char::from).collect() }
            }
            ModelKind::Mlp | ModelKind::Cnn | ModelKind::ResNet => {
                Kind::Images { height: SIDE, width: SIDE, channels: 1, classes: CLASSES }
            }
        }
    }
}

/// Rejects settings that cannot be measured, applies the choice of an algorithm, and estimates the memory of a rank.
fn prepare(comm: &mut Communicator, args: &Args, kind: &Kind) -> Result<MemoryEstimate, TrainError> {
    let pointless = match args.model {
        ModelKind::Cnn if args.hidden.is_some() => Some(("hidden", "mlp, resnet or transformer")),
        ModelKind::Mlp | ModelKind::Cnn | ModelKind::ResNet if args.context.is_some() => {
            Some(("context", "transformer"))
        }
        _ => None,
    };
    if let Some((option, models)) = pointless {
        return Err(TrainError::Setting(format!(
            "--{option} has no effect without --model {models}: remove it, or add --model {models}"
        )));
    }
    if matches!(args.wire, Wire::Compressed(_)) && comm.topology().nodes() == 1 {
        return Err(TrainError::Setting(format!(
            "--wire {} compresses between nodes, but {SHARE_A_NODE}",
            args.wire
        )));
    }
    if args.bucket_bytes == BucketBytes::Fixed(0) {
        return Err(TrainError::Setting("--bucket-bytes must be at least 1, got `0`".to_owned()));
    }
    if let Some(choice) = args.algorithm.as_ref().filter(|choice| choice.vendor() == Some(Vendor::Nccl)) {
        return Err(TrainError::Setting(format!(
            "{choice} works on GPU memory, and bench-step runs on the CPU: choose another --algorithm"
        )));
    }
    if let Some(choice) = args.algorithm.clone() {
        comm.set_choice(choice).map_err(|error| TrainError::Setting(error.to_string()))?;
    }
    let size = model::size(args.model, args.hidden(), kind)?;
    let mut needs =
        MemoryEstimate::of(&size, args.batch_size, args.optimizer.0.state_names().len(), args.wire);
    if args.shard_optimizer {
        needs.optimizer /= comm.ranks() as f64;
    }
    if comm.ranks() > 1 {
        // There are two models, because one steps independently.
        needs.parameters *= 2.0;
        needs.gradients *= 2.0;
        needs.optimizer *= 2.0;
    }
    Ok(needs)
}

fn measure(comm: &mut Communicator, args: &Args, kind: &Kind) -> Result<Row, TrainError> {
    let classifier = || model::classifier(args.model, args.hidden(), 0.0, kind, &Parameters::new(0));
    let replica = classifier()?;
    let parameters = replica.parameters().iter().filter(|array| array.is_trained).map(Parameter::count).sum();
    let optimizer = OptimizerSettings::from(args.optimizer.0.clone());
    let buckets = BucketSettings {
        overlap: args.overlap,
        wire: args.wire,
        bucket_bytes: args.bucket_bytes,
        shard_optimizer: args.shard_optimizer,
        local_steps: args.local_steps.map(|steps| LocalSteps { steps: steps.get(), outer: Outer::Average }),
        ..BucketSettings::default()
    };
    let batches = [Some(Placed::from(batch(args.batch_size, kind)))];
    // A replica on every rank that steps without the other ranks.
    let mut independent = None;
    if comm.ranks() > 1 {
        let mut own = comm.split(Some(comm.rank()), 0)?.expect("every rank has a color");
        let apart = BucketSettings::default();
        let mirror = Mirror::new(&mut own, classifier()?, optimizer.clone(), &apart, None)?;
        independent = Some((own, mirror));
    }
    let mut mirror = Mirror::new(comm, replica, optimizer, &buckets, None)?;
    // Alternating, because the speed of a shared machine drifts.
    let steps = args.steps.div_ceil(ROUNDS);
    let (mut all_ms, mut independent_ms) = ([0.0; 5], 0.0);
    for _ in 0..ROUNDS {
        if let Some((own, mirror)) = &mut independent {
            // All ranks step at the same time, as with the others.
            comm.barrier()?;
            let mut times_ms = medians(own, mirror, &batches, steps)?;
            slowest(comm, &mut times_ms)?;
            independent_ms += times_ms[0] / ROUNDS as f64;
        }
        let round_ms = times(comm, &mut mirror, &batches, args, steps)?;
        all_ms.iter_mut().zip(round_ms).for_each(|(all, round)| *all += round / ROUNDS as f64);
    }
    let [ms_per_step, compute_ms, hidden_communication_ms, exposed_communication_ms, update_ms] = all_ms;
    let independent_ms_per_step = independent.map(|_| independent_ms);
    let (ranks, transport) = (comm.ranks(), comm.transport());
    let size = mirror.buckets().expect("gradients are reduced in host memory").size();
    Ok(Row {
        framework: "unisono",
        model: args.model.name(),
        parameters,
        ranks,
        transport,
        bucket_bytes: size.bytes,
        buckets_because: size.why,
        ms_per_step,
        compute_ms,
        hidden_communication_ms,
        exposed_communication_ms,
        update_ms,
        independent_ms_per_step,
        scaling_percent: independent_ms_per_step.map(|independent_ms| 100.0 * independent_ms / ms_per_step),
    })
}

fn times<R: Replica>(
    comm: &mut Communicator,
    mirror: &mut Mirror<R>,
    batches: &[Option<R::Batch>],
    args: &Args,
    steps: usize,
) -> Result<[f64; 5], TrainError> {
    if args.local_steps.is_none() && args.overlap != Overlap::Across {
        return medians(comm, mirror, batches, steps);
    }
    // Measures whole rounds of local steps, because only the last step of each communicates.
    let round = args.local_steps.map_or(1, |round| round.get() as usize);
    means(comm, mirror, batches, steps.next_multiple_of(round))
}

/// Measures the parts of each step on the slowest rank, and returns the medians over this many steps in milliseconds.
fn medians<R: Replica>(
    comm: &mut Communicator,
    mirror: &mut Mirror<R>,
    batches: &[Option<R::Batch>],
    steps: usize,
) -> Result<[f64; 5], TrainError> {
    let mut columns: [Vec<f64>; 5] = Default::default();
    for step in 0..WARM_UP + steps {
        comm.barrier()?;
        let began = Instant::now();
        let report = mirror.step(comm, Share::of(batches), RATE, |_| true)?;
        let mut times = milliseconds(began.elapsed(), report.times);
        slowest(comm, &mut times)?;
        if step >= WARM_UP {
            columns.iter_mut().zip(times).for_each(|(column, time)| column.push(time));
        }
    }
    Ok(columns.map(|mut column| {
        column.sort_by(f64::total_cmp);
        column[steps / 2]
    }))
}

/// Measures the slowest rank, as means over this many steps without waits in between.
fn means<R: Replica>(
    comm: &mut Communicator,
    mirror: &mut Mirror<R>,
    batches: &[Option<R::Batch>],
    steps: usize,
) -> Result<[f64; 5], TrainError> {
    for _ in 0..WARM_UP {
        mirror.step(comm, Share::of(batches), RATE, |_| true)?;
    }
    mirror.settle()?;
    mirror.end_round(comm)?;
    comm.barrier()?;
    let (began, mut parts) = (Instant::now(), Times::default());
    for _ in 0..steps {
        parts += mirror.step(comm, Share::of(batches), RATE, |_| true)?.times;
    }
    mirror.settle()?;
    mirror.end_round(comm)?;
    let mut times = milliseconds(began.elapsed(), parts).map(|sum| sum / steps as f64);
    slowest(comm, &mut times)?;
    Ok(times)
}

fn milliseconds(whole: Duration, parts: Times) -> [f64; 5] {
    let Times { compute, hidden, exposed, update, .. } = parts;
    [whole, compute, hidden, exposed, update].map(|time| 1e3 * time.as_secs_f64())
}

/// Returns the maximum of each time over all ranks. Always uses Unisono's algorithms, because not every MPI has this reduction.
fn slowest(comm: &mut Communicator, times: &mut [f64]) -> Result<(), TrainError> {
    comm.call().algorithm(Choice::Auto).all_reduce(times, ReduceOp::Max)?;
    Ok(())
}

/// Returns synthetic samples. The cost of a step does not depend on their content.
fn batch(samples: usize, kind: &Kind) -> Batch {
    let classes = |count: usize, classes: usize| -> Vec<u32> {
        (0..count).map(|at| (at * 37 % classes) as u32).collect()
    };
    match kind {
        Kind::Text { context, vocabulary } => {
            let tokens = classes(samples * context, vocabulary.len());
            let targets = classes(samples * context + 1, vocabulary.len()).split_off(1);
            Batch { inputs: Inputs::Tokens(tokens), targets, samples }
        }
        Kind::Images { .. } | Kind::Table { .. } => {
            let pixels = (0..samples * SIDE * SIDE).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect();
            Batch { inputs: Inputs::Pixels(pixels), targets: classes(samples, CLASSES), samples }
        }
    }
}

fn print_row(row: &Row) {
    println!(
        "{} parameters, {} ranks over {}, in buckets of {} ({}): {:.2} ms per step; compute {:.2}, all-reduce {:.2} hidden and {:.2} exposed, \
         update {:.2}",
        row.parameters,
        row.ranks,
        row.transport,
        size::text(row.bucket_bytes),
        row.buckets_because,
        row.ms_per_step,
        row.compute_ms,
        row.hidden_communication_ms,
        row.exposed_communication_ms,
        row.update_ms
    );
    if let (Some(independent_ms), Some(percent)) = (row.independent_ms_per_step, row.scaling_percent) {
        println!(
            "independent processes at the same time: {independent_ms:.2} ms per step; scaling {percent:.0} %"
        );
    }
}
