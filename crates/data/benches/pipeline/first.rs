//! Measures the wait for the first batch of an epoch behind a large shuffle, with stages that restart in each epoch and with stages that continue
//! across epochs.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use unisono_data::{DataError, Depth, Pipeline, Threads};

const SAMPLES: u64 = 30_000;
const BUFFER: usize = 10_000;
const BATCH: usize = 64;
const EPOCHS: u64 = 4;
const SEED: u64 = 1;
/// The simulated read time of the source, per this many records.
const BLOCK: (u64, Duration) = (100, Duration::from_millis(1));
/// The consumer's time per batch.
const STEP: Duration = Duration::from_millis(1);

/// A builder of the pipeline of all epochs.
type Way<'a> = &'a dyn Fn() -> Pipeline<Vec<u64>>;

/// Prints the waits of both variants in milliseconds.
pub(crate) fn report() -> Result<(), DataError> {
    // Threads begin to read when a stage is built.
    let anew = || Pipeline::repeat(0..EPOCHS, |epoch| Ok(stages(records(), epoch)));
    let going_on = || stages(Pipeline::repeat(0..EPOCHS, |_| Ok(records())), 0);
    let ways: [(&str, Way); 2] = [("stages of each epoch", &anew), ("stages that go on", &going_on)];
    for (name, epochs) in ways {
        let waits: Vec<_> =
            waits(epochs())?.iter().map(|wait| format!("{:.2}", 1e3 * wait.as_secs_f64())).collect();
        println!("{name}: the first batch of epochs 1 to {EPOCHS} after {} ms", waits.join(", "));
    }
    Ok(())
}

fn records() -> Pipeline<u64> {
    Pipeline::of((0..SAMPLES).inspect(|record| {
        if record % BLOCK.0 == 0 {
            thread::sleep(BLOCK.1);
        }
    }))
}

fn stages(records: Pipeline<u64>, epoch: u64) -> Pipeline<Vec<u64>> {
    records.shuffle(BUFFER, SEED, epoch).map(Threads::Fixed(1), Ok).batch(BATCH).prefetch(Depth::Auto)
}

/// Returns the waits for the first batch of each epoch.
fn waits(mut batches: Pipeline<Vec<u64>>) -> Result<Vec<Duration>, DataError> {
    let mut waits = vec![];
    for _ in 0..EPOCHS {
        let asked = Instant::now();
        let mut epoch = batches.epoch();
        black_box(epoch.next().transpose()?);
        waits.push(asked.elapsed());
        for batch in epoch {
            black_box(batch?);
            thread::sleep(STEP);
        }
    }
    Ok(waits)
}
