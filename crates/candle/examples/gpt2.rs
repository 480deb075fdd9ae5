//! Fine-tunes GPT-2 on a text: `mpirun -n 2 gpt2 FOLDER TEXT [RATE]`. FOLDER holds the three files that Hugging Face publishes for a model.

use std::{env::args, fs, path::Path};

use candle_core::{Device, Module, Tensor};
use tokenizers::Tokenizer;
use unisono_candle::model::Gpt2;
use unisono_candle::{Config, Loss, Parameters, fit};
use unisono_train::{AdamW, NamedRule};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn train(comm: &mut unisono::Communicator) -> Result<()> {
    let (folder, text) = args().nth(1).zip(args().nth(2)).ok_or("expected a folder and a text file")?;
    let learning_rate = args().nth(3).map_or(Ok(2e-4), |rate| rate.parse::<f64>())?;
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
    let loss = move |windows: &[Vec<u32>]| {
        let all = Tensor::from_vec(windows.concat(), (windows.len(), length + 1), &Device::Cpu)?;
        Loss::cross_entropy(&model.forward(&all.narrow(1, 0, length)?)?, &all.narrow(1, 1, length)?)
    };
    let optimizer = NamedRule::new(AdamW::default());
    let config = Config { epochs: 3, learning_rate, optimizer, ..Config::default() };
    let (checkpoint_dir, global_batch) = (Some(folder.join("tuned")), Some(8));
    let config = Config { checkpoint_dir, global_batch, ..config };
    let last = fit(comm, &(parameters, loss), (train, held_out), &config)?.last;
    println!("rank {rank}: loss {:.4}, held out {:.4}", last.loss, last.test_loss);
    Ok(())
}

fn main() -> std::process::ExitCode {
    unisono::run(train)
}
