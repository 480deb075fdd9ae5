//! Compares the copies of an all-reduce through the host, in segments through a small pinned buffer, with a plain copy of the whole array to or from
//! pinned memory of its size.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};
use unisono::Communicator;
use unisono::internals::{Way, copy_in_segments};

use crate::report::{Failure, Figures, Outcome, median, rounded, us_since};
use crate::settings::Settings;

const SIZE_BYTES: usize = 64 << 20;
const ROUNDS: usize = 15;
/// The required ratio to a plain copy's throughput, in each direction.
const LEAST_RATIO: f64 = 0.8;

/// Alternates both kinds of copies. Only one rank runs it, because several would share the GPU's link.
pub(crate) fn measure(comm: &mut Communicator, _: &Settings, _: &str) -> Outcome {
    assert!(comm.ranks() == 1, "one rank measures copies, not {}", comm.ranks());
    let context = comm.device()?;
    let stream = context.new_stream()?;
    // SAFETY: the memory is written before it is read: the first copy is from the GPU.
    let pinned = unsafe { context.alloc_pinned::<u8>(SIZE_BYTES) }?;
    // Uses the flags of Unisono's memory, which the host reads: not write-combined. SAFETY: as above.
    let cached = unsafe { context.alloc_pinned_with_flags::<u8>(SIZE_BYTES, 0) }?;
    let pattern: Vec<u8> = (0..SIZE_BYTES).map(|place| (place % 251) as u8).collect();
    let mut array = stream.clone_htod(&pattern)?;
    stream.synchronize()?;
    let mut memories = [pinned, cached];

    copy_in_segments(comm, &mut array, &stream, Way::Both)?;
    if stream.clone_dtoh(&array)? != pattern {
        return Err(Failure::Failed("an array differs after a copy to the host and back".to_owned()));
    }
    let mut times_us = [const { Vec::new() }; 7];
    for _ in 0..ROUNDS {
        for (memory, times_us) in memories.iter_mut().zip(&mut times_us[..2]) {
            times_us.push(plain_us(&stream, || stream.memcpy_dtoh(&array, memory))?);
        }
        times_us[2].push(segments_us(comm, &mut array, &stream, Way::Down)?);
        for (memory, times_us) in memories.iter().zip(&mut times_us[3..5]) {
            times_us.push(plain_us(&stream, || stream.memcpy_htod(memory, &mut array))?);
        }
        times_us[5].push(segments_us(comm, &mut array, &stream, Way::Up)?);
        times_us[6].push(segments_us(comm, &mut array, &stream, Way::Both)?);
    }
    outcome(times_us)
}

fn segments_us(
    comm: &mut Communicator,
    array: &mut CudaSlice<u8>,
    stream: &Arc<CudaStream>,
    way: Way,
) -> Result<f64, Failure> {
    let began = Instant::now();
    copy_in_segments(comm, array, stream, way)?;
    Ok(us_since(began))
}

fn plain_us(stream: &CudaStream, copy: impl FnOnce() -> Result<(), DriverError>) -> Result<f64, DriverError> {
    let began = Instant::now();
    copy()?;
    stream.synchronize()?;
    Ok(us_since(began))
}

/// Compares Unisono's copies with the faster of the two plain copies.
fn outcome(times_us: [Vec<f64>; 7]) -> Outcome {
    let [down_combined, down_cached, down, up_combined, up_cached, up, both] = times_us.map(median);
    let gb_per_s = |time_us: f64| SIZE_BYTES as f64 / time_us / 1e3;
    let (plain_down, plain_up) = (down_combined.min(down_cached), up_combined.min(up_cached));
    let ratios = [plain_down / down, plain_up / up];
    let figures = Figures::default()
        .with("bytes", SIZE_BYTES)
        .with("rounds", ROUNDS)
        .with("down_gb_per_s", rounded(gb_per_s(down)))
        .with("plain_down_gb_per_s", rounded(gb_per_s(down_cached)))
        .with("plain_down_write_combined_gb_per_s", rounded(gb_per_s(down_combined)))
        .with("down_ratio", rounded(ratios[0]))
        .with("up_gb_per_s", rounded(gb_per_s(up)))
        .with("plain_up_gb_per_s", rounded(gb_per_s(up_cached)))
        .with("plain_up_write_combined_gb_per_s", rounded(gb_per_s(up_combined)))
        .with("up_ratio", rounded(ratios[1]))
        .with("down_and_up_gb_per_s", rounded(gb_per_s(both)))
        .with("least_ratio", LEAST_RATIO);
    let is_fast = ratios.into_iter().all(|ratio| ratio >= LEAST_RATIO);
    let [down, up] = ratios.map(|ratio| (100.0 * ratio).round());
    let why = format!("down {down} % and up {up} % of a plain copy; both should be at least 80 %");
    figures.unless((!is_fast).then_some(why))
}
