//! Compares batches that are copied to the GPU while it computes, as in the trainer, with batches that are already there, and with copies from
//! pageable memory between steps.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};
use unisono::{Communicator, HostToDevice};

use crate::report::{Failure, Figures, Outcome, median, rounded, us_since};
use crate::settings::Settings;

/// The number of elements of a batch: 2 MiB.
const BATCH: usize = 1 << 19;
const STEPS: usize = 10;
const ROUNDS: usize = 5;
/// The work of a step besides reading its batch: the number of copies on the GPU, and the bytes of each.
const WORK: usize = 16;
const WORK_BYTES: usize = 64 << 20;
/// The number of buffers in the trainer, and of batches that it prefetches.
const BUFFERS: usize = 4;
const AHEAD: usize = 2;
/// The maximum ratio of the time of a step whose batch is copied ahead to the time of a step whose batch is already there.
const MOST_RATIO: f64 = 1.1;

/// Alternates the three variants. Only one rank runs it, because several would share the GPU.
pub(crate) fn measure(comm: &mut Communicator, _: &Settings, _: &str) -> Outcome {
    assert!(comm.ranks() == 1, "one rank measures copies, not {}", comm.ranks());
    let stream = comm.device()?.new_stream()?;
    let mut copies = comm.host_to_device(&stream, BUFFERS)?;
    let batches: Vec<u32> = (0..(STEPS * BATCH) as u32).collect();
    let mut gpu = Gpu {
        work: [stream.alloc_zeros(WORK_BYTES)?, stream.alloc_zeros(WORK_BYTES)?],
        seen: stream.alloc_zeros(STEPS * BATCH)?,
        stream,
    };
    let there = gpu.stream.clone_htod(&batches[..BATCH])?;
    let mut times_us = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        times_us[0].push(timed(|| (0..STEPS).try_for_each(|step| gpu.step(step, &there)))?);
        times_us[1].push(timed(|| gpu.when_needed(&batches))?);
        times_us[2].push(gpu.ahead(&mut copies, &batches)?);
        let wrong = gpu.count_wrong(&batches)?;
        if wrong > 0 {
            return Err(Failure::Failed(format!(
                "{wrong} elements of batches that were copied ahead are wrong"
            )));
        }
        times_us[3].push(timed(|| gpu.only_copies(&mut copies, &batches))?);
    }
    outcome(times_us)
}

/// Returns the microseconds per step.
fn timed(steps: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let began = Instant::now();
    steps()?;
    Ok(us_since(began) / STEPS as f64)
}

struct Gpu {
    stream: Arc<CudaStream>,
    work: [CudaSlice<u8>; 2],
    /// The elements that steps have read from batches.
    seen: CudaSlice<u32>,
}

impl Gpu {
    /// Reads a batch, works, and waits for the end, as a trainer waits for the loss.
    fn step(&mut self, step: usize, batch: &CudaSlice<u32>) -> Result<(), Failure> {
        let mut seen = self.seen.slice_mut(step * BATCH..(step + 1) * BATCH);
        self.stream.memcpy_dtod(batch, &mut seen)?;
        let [from, to] = &mut self.work;
        for _ in 0..WORK {
            self.stream.memcpy_dtod(from, to)?;
        }
        Ok(self.stream.synchronize()?)
    }

    /// Copies each batch when its step begins.
    fn when_needed(&mut self, batches: &[u32]) -> Result<(), Failure> {
        batches.chunks_exact(BATCH).enumerate().try_for_each(|(step, batch)| {
            let batch = self.stream.clone_htod(batch)?;
            self.step(step, &batch)
        })
    }

    /// Starts the copies on another thread, before their steps. Returns microseconds per step, measured from when the first batch is in flight: a run
    /// has thousands of steps, and waits for one first batch.
    fn ahead(&mut self, copies: &mut HostToDevice, batches: &[u32]) -> Result<f64, Failure> {
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::sync_channel(AHEAD - 1);
            scope.spawn(move || {
                // The channel is closed after the consumer has failed.
                let _ = batches.chunks_exact(BATCH).try_for_each(|batch| sender.send(copies.copy(batch)));
            });
            let mut receiver = receiver.into_iter().enumerate().peekable();
            receiver.peek();
            timed(|| receiver.try_for_each(|(step, batch)| self.step(step, &batch?)))
        })
    }

    fn only_copies(&mut self, copies: &mut HostToDevice, batches: &[u32]) -> Result<(), Failure> {
        for batch in batches.chunks_exact(BATCH) {
            let batch = copies.copy(batch)?;
            // The stream that uses the batch waits for its copy.
            self.stream.memcpy_dtod(&batch.slice(..1), &mut self.seen.slice_mut(..1))?;
        }
        Ok(self.stream.synchronize()?)
    }

    fn count_wrong(&self, batches: &[u32]) -> Result<usize, DriverError> {
        let seen = self.stream.clone_dtoh(&self.seen)?;
        Ok(seen.iter().zip(batches).filter(|(seen, expected)| seen != expected).count())
    }
}

fn outcome(times_us: [Vec<f64>; 4]) -> Outcome {
    let [there, when_needed, ahead, copies] = times_us.map(median);
    let ratio = ahead / there;
    let figures = Figures::default()
        .with("batch_bytes", BATCH * size_of::<u32>())
        .with("steps", STEPS)
        .with("rounds", ROUNDS)
        .with("step_us", rounded(there))
        .with("step_with_copy_us", rounded(when_needed))
        .with("step_with_copy_ahead_us", rounded(ahead))
        .with("ratio", rounded(ratio))
        .with("most_ratio", MOST_RATIO)
        .with("copies_ahead_gb_per_s", rounded((BATCH * size_of::<u32>()) as f64 / copies / 1e3));
    let why = format!(
        "a step whose batch is copied ahead takes {ratio:.2} times one whose batch is there; it should be at most {MOST_RATIO}"
    );
    figures.unless((ratio > MOST_RATIO).then_some(why))
}
