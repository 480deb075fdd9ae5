//! Custom stages.

use std::sync::Arc;

use candle_core::{D, DType, Device, Result, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use unisono::Communicator;
use unisono_candle::{
    Cut, Dropout, Linear, Loss, Network, Parameters, StageNetwork, SyncBatchNorm, cross_entropy, model,
};
use unisono_data::{Depth, Options, Source, Threads};
use unisono_steps::pipeline::PipelineSchedule;
use unisono_strategies::pipeline::{Grid, MicroBatches, Pipeline};
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{
    AdamW, BucketSettings, LossSums, Mirror, OptimizerSettings, Replica, RunSettings, Sampled, Sgd, Share,
    Shares, Summary, TrainError, Trainer,
};

const MICRO_BATCHES: usize = 8;
const SAMPLES: usize = 6;
const INPUTS: usize = 5;
const CLASSES: usize = 3;
/// The width of each stage of the longest pipeline.
const WIDTHS: [usize; 4] = [7, 9, 8, CLASSES];
const STEPS: usize = 6;
const SEED: u64 = 11;

type Batch = (Tensor, Tensor);

/// Returns the micro-batches of a replica in a step. Their numbers of samples differ.
fn batches(step: usize, replica: usize) -> Vec<Batch> {
    let mut random = ChaCha8Rng::seed_from_u64((step * 10 + replica) as u64);
    let batch = |micro_batch: usize| {
        let samples = SAMPLES + micro_batch % 3;
        let inputs: Vec<f32> = (0..samples * INPUTS).map(|_| random.random::<f32>() - 0.5).collect();
        let targets: Vec<u32> =
            inputs.chunks(INPUTS).map(|row| u32::from(row[0] > 0.0) + u32::from(row[1] > 0.2)).collect();
        let inputs = Tensor::from_vec(inputs, (samples, INPUTS), &Device::Cpu).unwrap();
        (inputs, Tensor::new(targets, &Device::Cpu).unwrap())
    };
    (0..MICRO_BATCHES).map(batch).collect()
}

fn layer(parameters: &Parameters, number: usize) -> Linear {
    let inputs = number.checked_sub(1).map_or(INPUTS, |before| WIDTHS[before]);
    let layer = Linear::new(parameters, &format!("layer{number}"), inputs, WIDTHS[number], 1.0).unwrap();
    if number + 1 < WIDTHS.len() { layer.with_relu() } else { layer }
}

fn loss(logits: &Tensor, targets: &Tensor) -> Result<Loss> {
    let sum = cross_entropy(logits, targets)?;
    let loss = f64::from(sum.to_scalar::<f32>()?);
    Ok(Loss { sum, tally: LossSums { targets: targets.elem_count() as f64, loss, correct: 0.0 } })
}

fn mirror<R: Replica>(comm: &mut Communicator, replica: R) -> std::result::Result<Mirror<R>, TrainError> {
    let optimizer = OptimizerSettings::new(AdamW::default());
    Mirror::new(comm, replica, optimizer, &BucketSettings::default(), None)
}

/// The loss of each step, and the loss of an evaluation at the end.
type Losses = Vec<f64>;

/// Trains on one rank with the batches of all replicas.
fn alone(replicas: usize) -> Losses {
    let losses = unisono::threads(1, |mut comm| -> std::result::Result<Losses, TrainError> {
        let parameters = Parameters::new(SEED);
        let layers: Vec<_> = (0..WIDTHS.len()).map(|number| layer(&parameters, number)).collect();
        let network = Network::new(&parameters, move |(inputs, targets): &Batch| {
            let logits = layers.iter().try_fold(inputs.clone(), |x, layer| layer.forward(&x))?;
            loss(&logits, targets)
        });
        let mut mirror = mirror(&mut comm, network)?;
        let of_step =
            |step| (0..replicas).flat_map(|replica| batches(step, replica)).map(Some).collect::<Vec<_>>();
        let mut losses = Vec::new();
        for step in 0..STEPS {
            let report = mirror.step(&mut comm, Share::of(&of_step(step)), 0.01, |_| true)?;
            losses.push(report.sums.tally.mean_loss());
        }
        let mut tally = LossSums::default();
        for batch in of_step(STEPS).iter().flatten() {
            tally += mirror.replica().evaluate(batch, None)?;
        }
        losses.push(tally.mean_loss());
        Ok(losses)
    });
    losses.into_iter().next().unwrap().unwrap()
}

/// Trains on a rank of a pipeline of this many ranks, in a world with several pipelines.
fn piped(
    comm: &mut Communicator,
    ranks: usize,
    schedule: PipelineSchedule,
) -> std::result::Result<Losses, TrainError> {
    let Grid { pipeline, mut replicas } = Grid::of(comm, ranks)?;
    let (rank, replica) = (pipeline.rank(), replicas.rank());
    let stages = ranks * schedule.stages_per_rank();
    let layers = WIDTHS.len() / stages;
    let stage = |number: usize| {
        let stage = number * ranks + rank;
        let parameters = Parameters::new(SEED);
        let own: Vec<_> =
            (stage * layers..(stage + 1) * layers).map(|number| layer(&parameters, number)).collect();
        StageNetwork::new(&parameters, move |(inputs, targets): &Batch, before: Option<&Tensor>| {
            let x = before.unwrap_or(inputs).clone();
            let x = own.iter().try_fold(x, |x, layer| layer.forward(&x))?;
            if stage + 1 == stages { loss(&x, targets).map(Cut::Loss) } else { Ok(Cut::Activations(x)) }
        })
        .unwrap()
    };
    let own = (0..schedule.stages_per_rank()).map(stage).collect();
    let mut mirror = mirror(&mut replicas, Pipeline::new(pipeline, schedule, own)?)?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let share = [Some(batches(step, replica))];
        let report = mirror.step(&mut replicas, Share::of(&share), 0.01, |_| true)?;
        losses.push(report.sums.tally.mean_loss());
    }
    let tally = mirror.replica().evaluate(&batches(STEPS, replica), None)?;
    let mut sums = [tally.targets, tally.loss];
    replicas.all_reduce(&mut sums, unisono::ReduceOp::Sum)?;
    losses.push(sums[1] / sums[0]);
    Ok(losses)
}

fn check(ranks: usize, replicas: usize, schedule: &str) {
    let schedule = schedule.parse().unwrap();
    let expected = alone(replicas);
    assert!(expected[STEPS - 1] < 0.95 * expected[0], "it learns: {expected:?}");
    for losses in unisono::threads(ranks * replicas, |mut comm| piped(&mut comm, ranks, schedule)) {
        let losses = losses.unwrap();
        let near = losses.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-5);
        assert!(near && losses.len() == expected.len(), "{schedule}: {losses:?}, on one rank {expected:?}");
    }
}

fn losses_match_one_rank() {
    for (ranks, replicas) in [(1, 1), (2, 1), (4, 1), (2, 2)] {
        for schedule in ["gpipe", "1f1b"] {
            check(ranks, replicas, schedule);
        }
    }
}

fn stages_may_be_interleaved() {
    check(2, 1, "interleaved:2");
    check(2, 2, "interleaved:2");
    check(1, 1, "interleaved:4");
}

fn trainer_runs_a_pipeline() {
    let dataset = unisono_data::load(&Source::Digits, &Options { train_samples: 4000, ..Options::default() });
    let dataset = Arc::new(dataset.unwrap());
    let summaries = unisono::threads(4, |mut comm| -> std::result::Result<Summary, TrainError> {
        let Grid { pipeline, replicas } = Grid::of(&mut comm, 2)?;
        let is_last = pipeline.rank() == 1;
        let parameters = Parameters::new(SEED);
        let (name, inputs, outputs) = if is_last { ("output", 64, 10) } else { ("hidden", 28 * 28, 64) };
        let layer = Linear::new(&parameters, name, inputs, outputs, 2.0).unwrap();
        let layer = if is_last { layer } else { layer.with_relu() };
        let stage =
            StageNetwork::new(&parameters, move |batch: &unisono_data::Batch, before: Option<&Tensor>| {
                let x = layer
                    .forward(&before.map_or_else(|| model::inputs(batch), |before| Ok(before.clone()))?)?;
                if !is_last {
                    return Ok(Cut::Activations(x));
                }
                let targets = Tensor::new(&*batch.targets, &Device::Cpu)?;
                let right = x.detach().argmax(D::Minus1)?.eq(&targets)?.to_dtype(DType::F32)?.sum_all()?;
                let mut loss = loss(&x, &targets)?;
                loss.tally.correct = f64::from(right.to_scalar::<f32>()?);
                Ok(Cut::Loss(loss))
            });
        let stage = stage.unwrap();
        let pipeline = Pipeline::new(pipeline, PipelineSchedule::OneForwardOneBackward, vec![stage])?;
        let (rank, ranks) = (replicas.rank(), replicas.ranks());
        let shares = Shares { rank, ranks, global_batch: 64, micro_batch: 8, fixed_passes: None };
        // The last step has fewer micro-batches.
        assert_ne!(dataset.train.len() % shares.global_batch, 0);
        let feed = Sampled::new(Arc::clone(&dataset), SEED, shares, Threads::Auto, Depth::Auto);
        let rate = Rate::new(Schedule::Cosine, 0.05, 0.05, 2 * shares.steps(dataset.train.len()) as u64);
        let settings = RunSettings::new(2, 64, OptimizerSettings::new(Sgd::default()), rate);
        Trainer::new(&mut comm, pipeline, MicroBatches(feed), settings, None)?.run(|_| ())
    });
    let summaries: Vec<_> = summaries.into_iter().map(|summary| summary.unwrap().last).collect();
    for last in &summaries {
        assert!(last.test_accuracy > 0.7, "it learnt too little: {last:?}");
        assert_eq!((last.loss, last.test_accuracy), (summaries[0].loss, summaries[0].test_accuracy));
    }
}

fn world_size_that_is_not_a_multiple_is_refused() {
    for error in unisono::threads(3, |mut comm| Grid::of(&mut comm, 2).unwrap_err().to_string()) {
        assert_eq!(error, "3 ranks cannot be cut into pipelines of 2: the ranks must be a multiple");
    }
}

fn missing_stage_is_refused_on_all_ranks() {
    let errors = unisono::threads(2, |comm| {
        let parameters = Parameters::new(SEED);
        let layer = layer(&parameters, 0);
        let stage = StageNetwork::new(&parameters, move |(inputs, _): &Batch, before: Option<&Tensor>| {
            layer.forward(before.unwrap_or(inputs)).map(Cut::Activations)
        })
        .unwrap();
        let rank = comm.rank();
        let stages = if rank == 0 { vec![stage] } else { Vec::new() };
        Pipeline::new(comm, PipelineSchedule::GPipe, stages).unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 1"), "{errors:?}");
    assert_eq!(errors[1], "rank 1 has 0 stages, but gpipe has 1");
}

fn stage_with_batch_norm_or_dropout_is_refused() {
    let forward = |_: &Batch, _: Option<&Tensor>| -> Result<Cut> { unreachable!("it is not made") };
    let (with_norm, with_dropout) = (Parameters::new(SEED), Parameters::new(SEED));
    let _norm = SyncBatchNorm::new(&with_norm, "norm", 3).unwrap();
    let _dropout = Dropout::new(&with_dropout, 0.5).unwrap();
    for parameters in [with_norm, with_dropout] {
        let error = StageNetwork::new(&parameters, forward).unwrap_err().to_string();
        assert!(error.contains("a stage of a pipeline has no SyncBatchNorm and no Dropout"), "{error}");
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        losses_match_one_rank,
        stages_may_be_interleaved,
        trainer_runs_a_pipeline,
        world_size_that_is_not_a_multiple_is_refused,
        missing_stage_is_refused_on_all_ranks,
        stage_with_batch_norm_or_dropout_is_refused,
    ]
}
