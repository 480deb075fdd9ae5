//! An MLP that classifies the rows of a CSV file. The class is in the column `label`, or else in the last one: `mpirun -n 2 mlp FILE`.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_nn::{Module, linear, seq};
use unisono_candle::{Loss, Network, Parameters, model};
use unisono_data::{Batch, Depth, Options, Source, Threads};
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{AdamW, OptimizerSettings, RunSettings, Sampled, Shares, Trainer};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn train(comm: &mut unisono::Communicator) -> Result<()> {
    let file = std::env::args().nth(1).ok_or("expected the path of a CSV file with a header")?;
    let table = Arc::new(unisono_data::load(&Source::Csv(file.into()), &Options::default())?);
    let (columns, classes) = (table.schema.columns.len(), table.schema.classes.len());
    let (rank, ranks, epochs, global_batch) = (comm.rank(), comm.ranks(), 20, 32);
    let parameters = Parameters::new(7);
    let vars = parameters.var_builder();
    let (hidden, output) = (linear(columns, 64, vars.pp("hidden"))?, linear(64, classes, vars.pp("output"))?);
    let network = seq().add(hidden).add_fn(Tensor::relu).add(output);
    let replica = Network::new(&parameters, move |rows: &Batch| {
        let targets = Tensor::new(&*rows.targets, &Device::Cpu)?;
        Loss::cross_entropy(&network.forward(&model::inputs(rows)?)?, &targets)
    });
    let shares = Shares { rank, ranks, global_batch, micro_batch: global_batch, fixed_passes: None };
    let rate = Rate::new(Schedule::Cosine, 0.01, 0.05, (epochs * shares.steps(table.train.len())) as u64);
    let settings = RunSettings::new(epochs, global_batch, OptimizerSettings::new(AdamW::default()), rate);
    let feed = Sampled::new(table, 7, shares, Threads::Auto, Depth::Auto);
    let report = Trainer::new(comm, replica, feed, settings, None)?.run(|_| ())?.last;
    println!("rank {rank} of {ranks}: accuracy {:.1} %", 100.0 * report.test_accuracy);
    Ok(())
}

fn main() -> std::process::ExitCode {
    unisono::run(train)
}
