//! Predicts the last column of a CSV file from the others: `mpirun -n 2 regression FILE`.

use candle_core::{Device, Tensor};
use candle_nn::{Module, linear, seq};
use unisono_candle::{Loss, Parameters, fit};
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{AdamW, Event, OptimizerSettings, RunSettings, Tally};

const EPOCHS: usize = 40;
const BATCH: usize = 32;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn train(comm: &mut unisono::Communicator) -> Result<()> {
    let path = std::env::args().nth(1).ok_or("expected the path of a CSV file with a header and numbers")?;
    let mut rows = csv::Reader::from_path(path)?.deserialize().collect::<csv::Result<Vec<Vec<f32>>>>()?;
    let (columns, held_out) = (rows[0].len() - 1, rows.split_off(rows.len() / 10 * 9));
    let parameters = Parameters::new(7);
    let vars = parameters.var_builder();
    let (hidden, output) = (linear(columns, 32, vars.pp("hidden"))?, linear(32, 1, vars.pp("output"))?);
    let network = seq().add(hidden).add_fn(Tensor::tanh).add(output);
    // The sum of the squared errors, since the trainer divides by the targets of all ranks.
    let loss = move |rows: &Vec<Vec<f32>>| {
        let all = Tensor::from_vec(rows.concat(), (rows.len(), columns + 1), &Device::Cpu)?;
        let predicted = network.forward(&all.narrow(1, 0, columns)?.contiguous()?)?;
        let sum = (predicted - all.narrow(1, columns, 1)?)?.sqr()?.sum_all()?;
        let tally = Tally { targets: rows.len() as f64, loss: sum.to_scalar::<f32>()?.into(), correct: 0.0 };
        Ok(Loss { sum, tally })
    };
    let rate = Rate::new(Schedule::Cosine, 0.03, 0.05, (EPOCHS * rows.len().div_ceil(BATCH)) as u64);
    let settings = RunSettings::new(EPOCHS, BATCH, OptimizerSettings::new(AdamW::default()), rate);
    let rank = comm.rank();
    fit(comm, &parameters, loss, (rows, held_out), settings, None, |event| match event {
        Event::Epoch(report) if rank == 0 => {
            println!("epoch {}: squared error {:.4}", report.epoch, report.test_loss);
        }
        _ => {}
    })?;
    Ok(())
}

fn main() -> std::process::ExitCode {
    unisono::run(train)
}
