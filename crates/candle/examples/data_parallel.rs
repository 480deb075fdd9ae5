//! An ordinary candle program that three lines make data-parallel: `mpirun -n 2 data_parallel`.

use candle_core::{D, DType, Device, Tensor};
use candle_nn::{AdamW, Module, Optimizer, VarBuilder, VarMap, linear, loss, seq};
use unisono_candle::{DataParallel, model};
use unisono_data::{Options, Source, Split};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Returns the inputs and classes of these samples.
fn batch(split: &dyn Split, samples: &[usize]) -> Result<(Tensor, Tensor)> {
    let batch = split.batch(samples, unisono_data::Pass::Evaluation)?;
    Ok((model::inputs(&batch)?, Tensor::new(&*batch.targets, &Device::Cpu)?))
}

fn train(comm: &mut unisono::Communicator) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let digits = unisono_data::load(&Source::Digits, &Options::default())?;
    let varmap = VarMap::new();
    let vars = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let (hidden, output) = (linear(784, 64, vars.pp("hidden"))?, linear(64, 10, vars.pp("output"))?);
    let network = seq().add(hidden).add_fn(Tensor::relu).add(output);
    let mut optimizer = AdamW::new_lr(varmap.all_vars(), 0.003)?;
    let mut parallel = DataParallel::new(comm, &varmap)?;
    for epoch in 0..4 {
        for samples in digits.train.order(7, epoch).chunks_exact(32 * ranks) {
            let (inputs, targets) = batch(&*digits.train, &samples[rank * 32..][..32])?;
            let gradients = parallel.backward(&loss::cross_entropy(&network.forward(&inputs)?, &targets)?)?;
            optimizer.step(&gradients)?;
        }
    }
    let (inputs, targets) = batch(&*digits.test, &Vec::from_iter(0..digits.test.len()))?;
    let right = network.forward(&inputs)?.argmax(D::Minus1)?.eq(&targets)?.to_dtype(DType::F32)?;
    println!("rank {rank} of {ranks} ranks: accuracy {:.1} %", 100.0 * right.mean_all()?.to_scalar::<f32>()?);
    Ok(())
}

fn main() -> std::process::ExitCode {
    unisono::run(train)
}
