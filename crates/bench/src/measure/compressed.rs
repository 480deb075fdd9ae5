//! Measurement of compressed all-reduces against an ordinary one: their times, and the errors of their results.

use std::time::Instant;

use unisono::{Communicator, ReduceOp, Result};
use unisono_compress::{Compression, Compressor, Levels};

use super::{Times, room, slowest};

/// One format at one size.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Row {
    /// The format between nodes; `f32` for an ordinary all-reduce.
    pub wire: String,
    /// The size of the array.
    pub bytes: usize,
    /// The number of its elements.
    pub count: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// The links between ranks.
    pub transport: &'static str,
    /// The time of one call: in each iteration the time of the slowest rank.
    pub time_us: Times,
    /// Array bytes over the median time, in 1e9 bytes per second.
    pub algbw_gb_per_s: f64,
    /// The norm of the error of the first result divided by the norm of the exact sum. Later calls send the residual of the first
    /// one.
    pub relative_error: f64,
    /// The largest error of an element of the first result, divided by the root mean square of the exact sum.
    pub largest_error: f64,
}

/// The bounds of the default number of iterations, which is [`WORTH_BYTES`] divided by the size of the array.
const ITERATIONS: std::ops::RangeInclusive<usize> = 10..=100;
const WORTH_BYTES: usize = 1 << 27;

/// Measures sums of approximately normally distributed random numbers at every size, and passes on a row for `f32` and each
/// compression. PowerSGD gets a square matrix of full rank, on which its error is larger than on gradients. All ranks call it with
/// the same arguments, and get the same rows.
///
/// # Errors
/// As [`Communicator::all_reduce`].
pub fn measure(
    comm: &mut Communicator,
    compressions: &[Compression],
    sizes_bytes: &[usize],
    (warm_up, iterations): (usize, Option<usize>),
    mut report: impl FnMut(Row),
) -> Result<()> {
    let levels = Levels::of(comm)?;
    let mut counts: Vec<_> = sizes_bytes.iter().map(|bytes| (bytes / size_of::<f32>()).max(1)).collect();
    counts.dedup();
    for count in counts {
        let iterations = iterations.unwrap_or_else(|| {
            (WORTH_BYTES / (count * size_of::<f32>())).clamp(*ITERATIONS.start(), *ITERATIONS.end())
        });
        let rows = count.isqrt();
        let shapes: [&[usize]; 2] = [&[rows, count / rows], &[count % rows]];
        let compressors =
            compressions.iter().map(|&compression| Some(Compressor::new(&levels, compression, &shapes)));
        let contender = |compressor| Contender { compressor, ..Contender::default() };
        let mut contenders: Vec<_> = [None].into_iter().chain(compressors).map(contender).collect();
        let (own, exact) = (values(comm.rank(), count), exact(comm.ranks(), count));
        let mut array = comm.alloc::<f32>(count)?;
        for iteration in 0..warm_up + iterations.max(1) {
            for contender in &mut contenders {
                array.copy_from_slice(&own);
                let time_us = contender.timed(comm, &mut array)?;
                if iteration == 0 {
                    contender.errors = errors(&array, &exact);
                }
                if iteration >= warm_up {
                    contender.times_us.push(time_us);
                }
            }
        }
        let names = ["f32".to_owned()].into_iter().chain(compressions.iter().map(ToString::to_string));
        for (wire, contender) in names.zip(contenders) {
            let (time_us, (relative_error, largest_error)) =
                (slowest(comm, contender.times_us)?, contender.errors);
            report(Row {
                wire,
                bytes: count * size_of::<f32>(),
                count,
                ranks: comm.ranks(),
                nodes: comm.topology().nodes(),
                transport: comm.transport(),
                time_us,
                algbw_gb_per_s: (count * size_of::<f32>()) as f64 / time_us.p50 / 1e3,
                relative_error,
                largest_error,
            });
        }
    }
    Ok(())
}

/// Returns why a node lacks memory for [`measure`] with these arguments, identical on all ranks; `None` if every node has enough.
/// All ranks call it before they measure.
///
/// # Errors
/// As [`Communicator::all_reduce`].
pub fn check_memory(
    comm: &mut Communicator,
    compressions: &[Compression],
    sizes_bytes: &[usize],
) -> Result<Option<String>> {
    // The values, the array, the exact sums in f64, and the residual of each compressor.
    room::for_arrays(comm, sizes_bytes, 4 + compressions.len())
}

/// The measurements of one format at one size, on this rank.
#[derive(Default)]
struct Contender {
    /// None for `f32`.
    compressor: Option<Compressor>,
    times_us: Vec<f64>,
    errors: (f64, f64),
}

impl Contender {
    fn timed(&self, comm: &mut Communicator, array: &mut [f32]) -> Result<f64> {
        comm.barrier()?;
        let began = Instant::now();
        match &self.compressor {
            Some(compressor) => compressor.all_reduce(comm, array)?,
            None => drop(comm.all_reduce(array, ReduceOp::Sum)?),
        }
        Ok(began.elapsed().as_secs_f64() * 1e6)
    }
}

/// Returns a rank's values: sums of a few random numbers.
fn values(rank: usize, count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(rank as u64);
    (0..count).map(|_| (0..4).map(|_| random.f32() - 0.5).sum()).collect()
}

fn exact(ranks: usize, count: usize) -> Vec<f64> {
    let mut sums = vec![0.0; count];
    for rank in 0..ranks {
        sums.iter_mut().zip(values(rank, count)).for_each(|(sum, value)| *sum += f64::from(value));
    }
    sums
}

fn errors(found: &[f32], exact: &[f64]) -> (f64, f64) {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let error = |(found, exact): (&f32, &f64)| f64::from(*found) - exact;
    let of_exact = norm(&mut exact.iter().copied());
    let of_errors = norm(&mut found.iter().zip(exact).map(error));
    let largest = found.iter().zip(exact).map(error).map(f64::abs).fold(0.0, f64::max);
    (of_errors / of_exact, largest * (exact.len() as f64).sqrt() / of_exact)
}
