//! Fine-tunes GPT-2 on a text: `mpirun -n 2 gpt2 FOLDER TEXT`, where FOLDER has the three files that Hugging Face publishes of a model.

use std::{env::args, fs, path::Path};

use candle_core::{Device, Tensor};
use tokenizers::Tokenizer;
use unisono_candle::model::{Gpt2, Model};
use unisono_candle::{Loss, Parameters, fit};
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{AdamW, Checkpoints, OptimizerSettings, RunSettings};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn train(comm: &mut unisono::Communicator) -> Result<()> {
    let (folder, text) = args().nth(1).zip(args().nth(2)).ok_or("expected a folder and a text file")?;
    let (folder, rank, length) = (Path::new(&folder), comm.rank(), 64);
    let tokens =
        Tokenizer::from_file(folder.join("tokenizer.json"))?.encode(fs::read_to_string(text)?, false)?;
    let mut train: Vec<_> =
        tokens.get_ids().windows(length + 1).step_by(length).map(<[u32]>::to_vec).collect();
    let held_out = train.split_off(train.len() / 10 * 9);
    let parameters = Parameters::new(7);
    let model = Gpt2::new(&parameters, &serde_json::from_slice(&fs::read(folder.join("config.json"))?)?)?;
    let missing = parameters.load(folder.join("model.safetensors"))?;
    missing.first().map_or(Ok(()), |name| Err(format!("there is no {name} in model.safetensors")))?;
    let loss = move |windows: &Vec<Vec<u32>>| {
        let all = Tensor::from_vec(windows.concat(), (windows.len(), length + 1), &Device::Cpu)?;
        Loss::cross_entropy(&model.forward(&all.narrow(1, 0, length)?)?, &all.narrow(1, 1, length)?)
    };
    let rate = Rate::new(Schedule::Constant, 1e-4, 0.0, 0);
    let mut settings = RunSettings::new(3, 8, OptimizerSettings::new(AdamW::default()), rate);
    settings.checkpoints = Some(Checkpoints::new(folder.join("tuned")));
    let last = fit(comm, &parameters, loss, (train, held_out), settings, None, |_| ())?.last;
    println!("rank {rank}: loss {:.4}, held out {:.4}", last.loss, last.test_loss);
    Ok(())
}

fn main() -> std::process::ExitCode {
    unisono::run(train)
}
