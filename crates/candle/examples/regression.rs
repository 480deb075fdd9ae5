//! Predicts the last column of a CSV file from the others: `mpirun -n 2 regression FILE`.

use candle_core::{Device, Tensor};
use candle_nn::{Module, linear, seq};
use unisono_candle::{Config, Loss, Parameters, fit_with};
use unisono_train::{AdamW, Event, NamedRule};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn train(comm: &mut unisono::Communicator) -> Result<()> {
    let rank = comm.rank();
    let path = std::env::args().nth(1).ok_or("expected the path of a CSV file with a header and numbers")?;
    let mut rows = csv::Reader::from_path(path)?.deserialize().collect::<csv::Result<Vec<Vec<f32>>>>()?;
    let columns = rows.first().ok_or("expected rows below the header")?.len() - 1;
    let held_out = rows.split_off(rows.len() / 10 * 9);
    let parameters = Parameters::new(7);
    let vars = parameters.var_builder();
    let (hidden, output) = (linear(columns, 32, vars.pp("hidden"))?, linear(32, 1, vars.pp("output"))?);
    let network = seq().add(hidden).add_fn(Tensor::tanh).add(output);
    let loss = move |rows: &[Vec<f32>]| {
        let all = Tensor::from_vec(rows.concat(), (rows.len(), columns + 1), &Device::Cpu)?;
        let predicted = network.forward(&all.narrow(1, 0, columns)?.contiguous()?)?;
        Loss::squared_error(&predicted, &all.narrow(1, columns, 1)?.flatten_all()?.to_vec1()?)
    };
    let (global_batch, optimizer) = (Some(32), NamedRule::new(AdamW::default()));
    let config = Config { epochs: 40, global_batch, optimizer, learning_rate: 0.03, ..Config::default() };
    fit_with(comm, &(parameters, loss), (rows, held_out), &config, |event| {
        if let Event::Epoch(report) = event
            && rank == 0
        {
            println!("epoch {}: squared error {:.4}", report.epoch, report.test_loss);
        }
    })?;
    Ok(())
}

fn main() -> std::process::ExitCode {
    unisono::run(train)
}
