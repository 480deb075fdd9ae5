//! A model cut into stages. `cargo run --release --example pipeline` runs two ranks as threads, each with one stage. `mpirun -n 4 pipeline 2 1f1b 8`
//! runs four processes: two pipelines of two ranks, with eight micro-batches per step.

use std::env::args;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{Device, Result, Tensor};
use unisono::{Communicator, ReduceOp};
use unisono_candle::{Cut, Linear, Loss, Parameters, StageNetwork, model};
use unisono_data::{Batch, Depth, Options, Source, Threads};
use unisono_strategies::pipeline::{Grid, MicroBatches, PassCosts, Pipeline, PipelineSchedule, Stage};
use unisono_train::{
    BucketSettings, Feed, Mirror, OptimizerSettings, Replica, ReplicaError, Sampled, Sgd, Share, Shares,
    TrainError,
};

const LAYERS: usize = 16;
const WIDTH: usize = 784;
const CLASSES: usize = 10;
const MICRO_BATCH: usize = 128;
const SAMPLES: usize = 6_000;
const SEED: u64 = 7;

/// Returns a stage: some layers and, in the last stage, also the output layer and the loss.
fn stage(number: usize, stages: usize) -> Result<impl Stage<Batch = Batch>> {
    let parameters = Parameters::new(SEED);
    let layer =
        |layer: usize| Ok(Linear::new(&parameters, &format!("layer{layer}"), WIDTH, WIDTH, 2.0)?.with_relu());
    let own = number * LAYERS / stages..(number + 1) * LAYERS / stages;
    let layers = own.map(layer).collect::<Result<Vec<_>>>()?;
    let is_last = number + 1 == stages;
    let last = is_last.then(|| Linear::new(&parameters, "output", WIDTH, CLASSES, 0.1)).transpose()?;
    StageNetwork::new(&parameters, move |batch: &Batch, before: Option<&Tensor>| {
        let x = before.map_or_else(|| model::inputs(batch), |before| Ok(before.clone()))?;
        let x = layers.iter().try_fold(x, |x, layer| layer.forward(&x))?;
        match &last {
            None => Ok(Cut::Activations(x)),
            Some(last) => {
                let targets = Tensor::new(&*batch.targets, &Device::Cpu)?;
                Loss::cross_entropy(&last.forward(&x)?, &targets).map(Cut::Loss)
            }
        }
    })
}

/// The program of each rank.
fn train(comm: &mut Communicator) -> std::result::Result<(), TrainError> {
    let wrong =
        |text: String| TrainError::Setting(format!("{text}: expected [RANKS [SCHEDULE [MICRO-BATCHES]]]"));
    let number = |place: usize, usual: usize| match args().nth(place) {
        Some(text) => text.parse().map_err(|_| wrong(text)),
        None => Ok(usual),
    };
    let (length, micro_batches) = (number(1, 2)?, number(3, 8)?);
    let schedule: PipelineSchedule = args().nth(2).unwrap_or("1f1b".to_owned()).parse().map_err(wrong)?;

    let (rank, ranks) = (comm.rank(), comm.ranks());
    let Grid { pipeline, mut replicas } = Grid::of(comm, length)?;
    let stages = length * schedule.stages_per_rank();
    let place = pipeline.rank();
    let own = (0..schedule.stages_per_rank()).map(|number| stage(number * length + place, stages));
    let pipeline =
        Pipeline::new(pipeline, schedule, own.collect::<Result<_>>().map_err(ReplicaError::from)?)?;
    let optimizer = OptimizerSettings::new(Sgd::default());
    let mut mirror = Mirror::new(&mut replicas, pipeline, optimizer, &BucketSettings::default(), Some(1.0))?;

    let options = Options { train_samples: SAMPLES, ..Options::default() };
    let dataset = Arc::new(unisono_data::load(&Source::Digits, &options)?);
    let global_batch = replicas.ranks() * micro_batches * MICRO_BATCH;
    let steps = SAMPLES.checked_div(global_batch).filter(|&steps| steps > 1);
    let steps = steps.ok_or_else(|| wrong(format!("a step of {global_batch} samples, of {SAMPLES}")))?;
    let shares = Shares {
        rank: replicas.rank(),
        ranks: replicas.ranks(),
        global_batch,
        micro_batch: MICRO_BATCH,
        fixed_passes: None,
    };
    let mut feed = MicroBatches(Sampled::new(dataset, SEED, shares, Threads::Auto, Depth::Auto));
    let (mut took, mut waited) = (Duration::ZERO, Duration::ZERO);
    let mut losses = Vec::new();
    for share in feed.epoch(1, 0)?.take(steps) {
        let share = share?;
        let began = Instant::now();
        let report = mirror.step(&mut replicas, Share::of(&share), 0.05, |_| true)?;
        took += began.elapsed();
        waited += mirror.replica().waited();
        losses.push(report.sums.tally.mean_loss());
    }
    let mut idle = [waited.as_secs_f64() / took.as_secs_f64() / ranks as f64];
    comm.all_reduce(&mut idle, ReduceOp::Sum)?;
    if rank == 0 {
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        let bubble = schedule
            .plan(length, micro_batches)
            .map(|plan| plan.timeline(&PassCosts { forward: 1.0, backward: 2.0, message: 0.0 }).bubble())
            .map_err(wrong)?;
        println!(
            "{ranks} ranks in pipelines of {length}: loss {first:.3} to {last:.3} in {} steps of {:.1} ms",
            losses.len(),
            1e3 * took.as_secs_f64() / losses.len() as f64
        );
        println!(
            "ranks waited for each other {:.1} % of the time; the bubble is {:.1} %",
            100.0 * idle[0],
            100.0 * bubble
        );
        assert!(last < first, "it has learnt nothing");
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    // Ranks are processes if a launcher started this program, and threads otherwise.
    #[cfg(feature = "mpi")]
    if unisono::config::Launcher::detect().rank.is_some() {
        return unisono::run(train);
    }
    unisono::run_threads(2, train)
}
