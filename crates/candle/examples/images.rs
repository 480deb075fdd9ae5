//! Classifies photos of any size. The folder has one subfolder per class: `mpirun -n 2 images FOLDER`.

use candle_core::{Device, Tensor};
use candle_nn::{Conv2dConfig, Module, conv2d, linear};
use unisono_candle::{Loss, Network, Parameters, model};
use unisono_data::{Batch, Depth, Normalize, Options, Source, Threads};
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{AdamW, OptimizerSettings, RunSettings, Sampled, Shares, Trainer};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn train(comm: &mut unisono::Communicator) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let folder = std::env::args().nth(1).ok_or("expected a folder with a folder of photos for each class")?;
    let (image_size, colour, normalize) = (Some([32, 32]), Some(true), Some(Normalize::Measured));
    let augmentation = "mirror,crop".parse()?;
    let options = Options { image_size, colour, normalize, augmentation, ..Options::default() };
    let photos = std::sync::Arc::new(unisono_data::load(&Source::Images(folder.into()), &options)?);
    let parameters = Parameters::new(7);
    let (vars, padded) = (parameters.var_builder(), Conv2dConfig { padding: 1, ..Conv2dConfig::default() });
    let (first, second) = (conv2d(3, 8, 3, padded, vars.pp("1"))?, conv2d(8, 16, 3, padded, vars.pp("2"))?);
    let output = linear(16, photos.schema.classes.len(), vars.pp("output"))?;
    let replica = Network::new(&parameters, move |batch: &Batch| {
        let x = model::inputs(batch)?.reshape(((), 32, 32, 3))?.permute((0, 3, 1, 2))?.contiguous()?;
        let x = second.forward(&first.forward(&x)?.relu()?.avg_pool2d(2)?)?.relu()?.mean((2, 3))?;
        Loss::cross_entropy(&output.forward(&x)?, &Tensor::new(&*batch.targets, &Device::Cpu)?)
    });
    let shares = Shares { rank, ranks, global_batch: 16, micro_batch: 16, fixed_passes: None };
    let feed = Sampled::new(photos, 7, shares, Threads::Auto, Depth::Auto);
    let rate = Rate::new(Schedule::Constant, 0.01, 0.0, 0);
    let settings = RunSettings::new(12, 16, OptimizerSettings::new(AdamW::default()), rate);
    let report = Trainer::new(comm, replica, feed, settings, None)?.run(|_| ())?.last;
    println!("rank {rank} of {ranks}: accuracy {:.1} %", 100.0 * report.test_accuracy);
    Ok(())
}

fn main() -> std::process::ExitCode {
    unisono::run(train)
}
