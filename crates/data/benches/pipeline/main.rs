//! Measures how well the input pipeline hides its work: the time of a training step while PNG images for the next steps are
//! decoded and augmented.
//!
//! `cargo bench -p unisono-data --bench pipeline`
//!
//! With `-- --rate images:DIR [--pixels FILE]`, measures how many images of a source it prepares per second; `scripts/compare-input` compares that
//! with PyTorch and TensorFlow. With `-- --first`, measures the wait for the first batch of an epoch.
//!
//! Without a pipeline a step takes input + compute. If the model computes on a core (a busy loop here), a step takes at best
//! max(compute, (input + compute) / cores). If it computes on another device, the cores are free, and a step takes at best
//! max(compute, input / cores).

mod first;
mod rate;

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use image::{GrayImage, Luma};
use unisono_data::{
    self, Batch, DataError, Dataset, Depth, Inputs, Options, Pass, Pipeline, Source, Threads,
};

/// Height and width of an image, in pixels.
const SIDE: u32 = 160;
const IMAGES_PER_CLASS: u32 = 100;
const CLASSES: u32 = 4;
const BATCH: usize = 16;
/// The repetitions of each variant. The variants alternate, since the machine's speed changes.
const ROUNDS: usize = 5;
const STEPS: usize = 40;
/// Warm-up steps, in which threads start and `auto` settles.
const BEFORE: usize = 20;

/// Returns the number of repetitions, or one under `cargo test`, which only checks that the program runs.
fn times(measured: usize) -> usize {
    if std::env::args().any(|argument| argument == "--bench") { measured } else { 1 }
}

/// A builder of a pipeline of batches.
type Way = fn(Arc<Dataset>, Vec<usize>) -> Pipeline<Batch>;

const WAYS: [(&str, Way); 6] = [
    ("one after the other", in_turn),
    ("prefetch", |data, samples| in_turn(data, samples).prefetch(Depth::Auto)),
    ("map on all cores", |data, samples| {
        let made = Pipeline::of(samples).map(Threads::Fixed(cores()), move |sample| one(&data, sample));
        made.batch(BATCH).map(Threads::Fixed(1), join)
    }),
    ("map, auto", |data, samples| {
        let made = Pipeline::of(samples).map(Threads::Auto, move |sample| one(&data, sample));
        made.batch(BATCH).map(Threads::Fixed(1), join)
    }),
    ("map and batch fused, on all cores", |data, samples| {
        let one = move |sample| one(&data, sample);
        Pipeline::of(samples).map_batch(Threads::Fixed(cores()), BATCH, one, join)
    }),
    ("map and batch fused, auto", |data, samples| {
        Pipeline::of(samples).map_batch(Threads::Auto, BATCH, move |sample| one(&data, sample), join)
    }),
];

/// Makes batches on the consumer's thread only.
fn in_turn(data: Arc<Dataset>, samples: Vec<usize>) -> Pipeline<Batch> {
    let made = Pipeline::new(samples.into_iter().map(move |sample| one(&data, sample)));
    Pipeline::new(Iterator::map(made.batch(BATCH), |parts| join(parts?)))
}

/// Returns a batch of one sample, read and decoded.
fn one(data: &Dataset, sample: usize) -> Result<Batch, DataError> {
    data.train.batch(&[sample], Pass::Training { seed: 1, epoch: 1 })
}

/// Joins batches into one.
fn join(parts: Vec<Batch>) -> Result<Batch, DataError> {
    let (mut all, mut targets, mut samples) = (vec![], vec![], 0);
    for part in parts {
        let Inputs::Pixels(pixels) = part.inputs else { return Err(DataError::other("not images")) };
        all.extend(pixels);
        targets.extend(part.targets);
        samples += part.samples;
    }
    Ok(Batch { inputs: Inputs::Pixels(all), targets, samples })
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Writes images with shapes and noise, so that they compress moderately.
fn write_images(directory: &Path) {
    for class in 0..CLASSES {
        let folder = directory.join(format!("class {class}"));
        std::fs::create_dir(&folder).expect("a writable directory");
        for number in 0..IMAGES_PER_CLASS {
            let mut noise = 1 + number + IMAGES_PER_CLASS * class;
            let image = GrayImage::from_fn(SIDE, SIDE, |x, y| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                Luma([((x * (class + 1) + y) % 200 + (noise >> 27)) as u8])
            });
            image.save(folder.join(format!("{number:03}.png"))).expect("a writable directory");
        }
    }
}

/// Does a fixed amount of work, which takes longer on a shared core.
fn compute(rounds: u64) {
    let mut value = 1.0_f64;
    for _ in 0..rounds {
        value = black_box(value * 1.000_000_1 + 1e-9);
    }
}

/// Returns the number of rounds of work that take this long on an idle machine.
fn rounds_in(time: Duration) -> u64 {
    const TRIAL: u64 = 5_000_000;
    let best = (0..5).map(|_| {
        let began = Instant::now();
        compute(TRIAL);
        began.elapsed()
    });
    (TRIAL as f64 * time.as_secs_f64() / best.min().expect("at least one trial").as_secs_f64()) as u64
}

/// Returns the milliseconds per step, and the fraction of them that the consumer waited.
fn steps(data: &Arc<Dataset>, way: Way, compute: impl Fn()) -> (f64, f64) {
    let (before, steps) = (times(BEFORE), times(STEPS));
    let samples = (0..(before + steps) * BATCH).map(|sample| sample % data.train.len()).collect();
    let mut batches = way(Arc::clone(data), samples);
    let mut step = || {
        black_box(batches.next().expect("a batch").expect("readable images"));
        compute();
        batches.stalled()
    };
    let waited_before = (0..before).map(|_| step()).last().unwrap_or_default();
    let began = Instant::now();
    let waited = (0..steps).map(|_| step()).last().unwrap_or_default() - waited_before;
    let seconds = began.elapsed().as_secs_f64();
    (1e3 * seconds / steps as f64, waited.as_secs_f64() / seconds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the value after an option on the command line.
fn argument(option: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != option).nth(1)
}

fn main() -> Result<(), DataError> {
    match argument("--rate") {
        Some(source) => rate::report(&source.parse()?, argument("--pixels").as_deref().map(Path::new)),
        None if std::env::args().any(|argument| argument == "--first") => first::report(),
        None => hidden(),
    }
}

/// Measures how well the pipeline hides its work.
fn hidden() -> Result<(), DataError> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    write_images(directory.path());
    let augmentation = "affine:8:15,mirror".parse().expect("they are in the catalogue");
    let options = Options { augmentation, ..Options::default() };
    let data = Arc::new(unisono_data::load(&Source::Images(directory.path().into()), &options)?);

    let input_ms = median((0..times(ROUNDS)).map(|_| steps(&data, WAYS[0].1, || ()).0).collect());
    println!("{} cores; the input of a step ({BATCH} images) takes {input_ms:.2} ms", cores());
    let rounds = rounds_in(Duration::from_secs_f64(input_ms / 1e3));
    let best = input_ms.max(2.0 * input_ms / cores() as f64);
    println!("\na core computes for {input_ms:.2} ms: {:.2} in turn, {best:.2} at best", 2.0 * input_ms);
    table(&data, || compute(rounds));
    let compute_ms = input_ms / 2.0;
    let best = compute_ms.max(input_ms / cores() as f64);
    println!(
        "\na device computes for {compute_ms:.2} ms: {:.2} in turn, {best:.2} at best",
        input_ms + compute_ms
    );
    table(&data, || thread::sleep(Duration::from_secs_f64(compute_ms / 1e3)));
    Ok(())
}

/// Measures the variants, which alternate.
fn table(data: &Arc<Dataset>, compute: impl Fn()) {
    println!("{:>34} {:>10} {:>8}", "", "ms/step", "waiting");
    let mut measured = WAYS.map(|_| vec![]);
    for _ in 0..ROUNDS {
        for (measured, (_, way)) in measured.iter_mut().zip(WAYS) {
            measured.push(steps(data, way, &compute));
        }
    }
    for ((name, _), measured) in WAYS.iter().zip(measured) {
        let (ms, waiting): (Vec<_>, Vec<_>) = measured.into_iter().unzip();
        println!("{name:>34} {:>10.2} {:>7.0}%", median(ms), 100.0 * median(waiting));
    }
}
