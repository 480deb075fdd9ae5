//! A `candle_nn` model in data-parallel training: `cargo run --release --example mirrored` runs two ranks as threads,
//! `mpirun -n 4 mirrored` four as processes.

use std::sync::Arc;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Module, VarBuilder, linear, seq};
use unisono::Communicator;
use unisono_candle::{Loss, Network, Parameters, cross_entropy, model};
use unisono_data::{Batch, Depth, Options, Source, Threads};
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{
    Event, OptimizerSettings, ReplicaError, RunSettings, Sampled, Sgd, Shares, Summary, Tally, TrainError,
    Trainer,
};

const EPOCHS: usize = 3;
const GLOBAL_BATCH: usize = 64;
const SEED: u64 = 7;

/// Ordinary `candle_nn` code, unaware of other ranks.
fn network(vars: &VarBuilder<'_>) -> Result<impl Module + use<>> {
    let hidden = linear(28 * 28, 64, vars.pp("hidden"))?;
    let output = linear(64, 10, vars.pp("output"))?;
    Ok(seq().add(hidden).add_fn(Tensor::relu).add(output))
}

/// The *sum* of the losses of a batch's targets, and the number of targets: the trainer divides by the total over all ranks.
fn loss(network: &impl Module, batch: &Batch) -> Result<Loss> {
    let logits = network.forward(&model::inputs(batch)?)?;
    let targets = Tensor::new(&*batch.targets, &Device::Cpu)?;
    let sum = cross_entropy(&logits, &targets)?;
    let right = logits.detach().argmax(D::Minus1)?.eq(&targets)?.to_dtype(DType::F32)?.sum_all()?;
    let tally = Tally {
        targets: batch.targets.len() as f64,
        loss: f64::from(sum.to_scalar::<f32>()?),
        correct: f64::from(right.to_scalar::<f32>()?),
    };
    Ok(Loss { sum, tally })
}

/// The program of each rank.
fn train(comm: &mut Communicator) -> std::result::Result<Summary, TrainError> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let options = Options { train_samples: 10_000, ..Options::default() };
    let dataset = Arc::new(unisono_data::load(&Source::Digits, &options)?);

    let parameters = Parameters::new(SEED);
    let network = network(&parameters.var_builder()).map_err(ReplicaError::from)?;
    let replica = Network::new(&parameters, move |batch: &Batch| loss(&network, batch));

    // This rank's share of a global batch, in as many passes as needed: here one.
    let shares =
        Shares { rank, ranks, global_batch: GLOBAL_BATCH, micro_batch: GLOBAL_BATCH, fixed_passes: None };
    let steps = EPOCHS * shares.steps(dataset.train.len());
    let feed = Sampled::new(dataset, SEED, shares, Threads::Auto, Depth::Auto);
    let rate = Rate::new(Schedule::Cosine, 0.05, 0.05, steps as u64);
    let optimizer = OptimizerSettings::new(Sgd::default());
    let settings = RunSettings {
        verify_replicas_every: Some(100),
        ..RunSettings::new(EPOCHS, GLOBAL_BATCH, optimizer, rate)
    };
    Trainer::new(comm, replica, feed, settings, None)?.run(|event| match event {
        Event::Epoch(report) if rank == 0 => println!(
            "epoch {}: loss {:.4}, test accuracy {:.1} %",
            report.epoch,
            report.loss,
            100.0 * report.test_accuracy
        ),
        _ => {}
    })
}

fn on_rank(comm: &mut Communicator) -> std::result::Result<(), TrainError> {
    let summary = train(comm)?;
    assert!(summary.last.test_accuracy > 0.9, "it learnt too little: {summary:?}");
    if comm.rank() == 0 {
        println!("all {} ranks hold the same parameters, {}", summary.ranks, summary.parameters_hash);
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    // Processes if a launcher started this one, otherwise threads.
    #[cfg(feature = "mpi")]
    if unisono::config::Launcher::detect().rank.is_some() {
        return unisono::run(on_rank);
    }
    unisono::run_threads(2, on_rank)
}
