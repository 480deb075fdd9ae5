//! Compares the cost of Unisono's call with `ncclAllReduce` on the same communicator.
//!
//! Ranks that share a GPU reduce more slowly than ranks with a GPU each, but this check compares calls, not reductions.

use std::time::Instant;

use serde_json::{Value, json};
use unisono::internals::nccl_all_reduce;
use unisono::{Choice, Communicator, ReduceOp, Vendor};

use crate::correct::without_nccl;
use crate::report::{Figures, Outcome, median, rounded, us_since};
use crate::settings::Settings;

const SIZES_BYTES: [usize; 8] = [8, 64, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20];
const WARM_UP: usize = 10;
/// Small arrays have more iterations, because they take little time and vary more.
const ITERATIONS: [usize; 8] = [300, 300, 300, 300, 100, 100, 50, 30];
/// The allowed difference. A size fails if it exceeds both limits.
const MOST_US: f64 = 5.0;
const MOST_PERCENT: f64 = 5.0;

/// For each iteration, the time until the call returned, and until the GPU had finished.
#[derive(Default)]
struct Times {
    called_us: Vec<f64>,
    done_us: Vec<f64>,
}

pub(crate) fn measure(comm: &mut Communicator, _: &Settings, route: &str) -> Outcome {
    without_nccl(Some("nccl"), route)?;
    let stream = comm.device()?.new_stream()?;
    let (mut rows, mut far) = (Vec::new(), 0);
    for (size_bytes, iterations) in SIZES_BYTES.into_iter().zip(ITERATIONS) {
        let mut array = comm.alloc_device::<f32>(size_bytes / size_of::<f32>())?;
        let [mut ours, mut theirs] = <[Times; 2]>::default();
        for iteration in 0..WARM_UP + iterations {
            for turn in 0..2 {
                // Alternates, since the second call benefits from the caches of the first.
                let is_ours = (iteration + turn) % 2 == 0;
                comm.set_choice(Choice::Auto)?;
                comm.barrier()?;
                comm.set_choice(Vendor::Nccl)?;
                let began = Instant::now();
                if is_ours {
                    comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream)?;
                } else {
                    nccl_all_reduce(comm, &mut array, &stream)?;
                }
                let called_us = us_since(began);
                comm.synchronize(&stream)?;
                if iteration >= WARM_UP {
                    let times = if is_ours { &mut ours } else { &mut theirs };
                    times.called_us.push(called_us);
                    times.done_us.push(us_since(began));
                }
            }
        }
        comm.set_choice(Choice::Auto)?;
        for times in [&mut ours, &mut theirs] {
            comm.all_reduce(&mut times.called_us, ReduceOp::Max)?;
            comm.all_reduce(&mut times.done_us, ReduceOp::Max)?;
        }
        let (is_near, row) = row(size_bytes, ours, theirs);
        far += usize::from(!is_near);
        rows.push(row);
    }
    let sizes = rows.len();
    let figures = Figures::of(comm, route).with("rows", rows);
    figures.unless((far > 0).then(|| {
        format!(
            "at {far} of {sizes} sizes a call of Unisono takes over {MOST_US} us and {MOST_PERCENT} % more than ncclAllReduce"
        )
    }))
}

/// Returns whether the difference of the medians is allowed, and the figures.
fn row(size_bytes: usize, ours: Times, theirs: Times) -> (bool, Value) {
    let [ours_called, theirs_called] = [ours.called_us, theirs.called_us].map(median);
    let [ours, theirs] = [ours.done_us, theirs.done_us].map(median);
    let (difference, percent) = (ours - theirs, 100.0 * (ours / theirs - 1.0));
    let is_near = difference <= MOST_US || percent <= MOST_PERCENT;
    let row = json!({
        "bytes": size_bytes,
        "us": rounded(ours),
        "nccl_us": rounded(theirs),
        "difference_us": rounded(difference),
        "difference_percent": rounded(percent),
        "until_returned_us": rounded(ours_called),
        "nccl_until_returned_us": rounded(theirs_called),
        "is_near": is_near,
    });
    (is_near, row)
}
