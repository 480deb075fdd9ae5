//! Measures how many images of a source the input pipeline prepares per second. `scripts/compare-input` compares that with PyTorch and TensorFlow.
//!
//! `cargo bench -p unisono-data --bench pipeline -- --rate images:DIR [--pixels FILE]`

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use unisono_data::{DataError, Dataset, Inputs, Options, Pass, Pipeline, Source, Threads};

/// The usual augmentation of small images: a crop after padding, and every other image mirrored.
const AUGMENTATION: &str = "mirror,crop:4";
const BATCH: usize = 64;
/// The first epoch starts the threads and fills the page cache. The others are measured.
const EPOCHS: u64 = 4;
const SEED: u64 = 1;

fn main() -> Result<(), DataError> {
    let argument = |option: &str| std::env::args().skip_while(|argument| argument != option).nth(1);
    let Some(source) = argument("--rate") else {
        println!("expected --rate SOURCE, such as --rate images:DIR, and optionally --pixels FILE");
        return Ok(());
    };
    report(&source.parse()?, argument("--pixels").as_deref().map(Path::new))
}

/// Prints the rate as JSON. Writes the first batch of held-out images, which are not augmented, to `pixels` as little-endian 32-bit floats.
fn report(source: &Source, pixels: Option<&Path>) -> Result<(), DataError> {
    let options = Options { augmentation: AUGMENTATION.parse()?, colour: Some(true), ..Options::default() };
    let data = Arc::new(unisono_data::load(source, &options)?);
    if let Some(path) = pixels {
        let held_out: Vec<usize> = (0..data.test.len().min(BATCH)).collect();
        let batch = data.test.batch(&held_out, Pass::Evaluation)?;
        let Inputs::Pixels(levels) = batch.inputs else { return Err(DataError::other("not images")) };
        let bytes: Vec<u8> = levels.iter().flat_map(|level| level.to_le_bytes()).collect();
        std::fs::write(path, bytes).map_err(|error| DataError::Write { path: path.into(), error })?;
    }
    let rate = images_per_s(&data)?;
    println!(r#"{{"framework":"unisono","images_per_s":{rate:.1}}}"#);
    Ok(())
}

/// Returns the rate of a training loop without computation.
fn images_per_s(data: &Arc<Dataset>) -> Result<f64, DataError> {
    let in_epoch = data.train.len().div_ceil(BATCH);
    let batches = (0..EPOCHS).flat_map(|epoch| {
        let order = data.train.order(SEED, epoch);
        order.chunks(BATCH).map(move |own| (epoch, own.to_vec())).collect::<Vec<_>>()
    });
    let (batches, on_threads) = (batches.collect::<Vec<_>>(), Arc::clone(data));
    let mut input = Pipeline::of(batches).map(Threads::Auto, move |(epoch, own)| {
        on_threads.train.batch(&own, Pass::Training { seed: SEED, epoch })
    });
    for batch in input.by_ref().take(in_epoch) {
        black_box(batch?);
    }
    let began = Instant::now();
    for batch in input {
        black_box(batch?);
    }
    let measured = data.train.len() as f64 * (EPOCHS - 1) as f64;
    Ok(measured / began.elapsed().as_secs_f64())
}
