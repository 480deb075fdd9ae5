//! The fraction of an asynchronous call that computation hides, measured as in osu_iallreduce: the call alone, then with
//! computation of the same duration.

use std::hint::black_box;
use std::time::Instant;

use unisono::{Buffer, Call, Choice, Communicator, Error, Request, Result};

use super::{Effort, slowest};

/// The largest number of iterations, each of which measures three times.
const MOST_ITERATIONS: usize = 100;
/// The units of work that are timed, to compute how many take as long as a call.
const UNITS: u64 = 1 << 16;

/// Returns the fraction of a call on `buffer` that computation hides, in percent; `None` if it has no asynchronous form here. All
/// ranks call it and get the same result.
pub(super) fn percent<B: Buffer<Element: From<u8>>>(
    comm: &mut Communicator,
    choice: &Choice,
    call: &Call,
    effort: Effort,
    mut buffer: B,
) -> Result<Option<f64>> {
    let effort = Effort { iterations: effort.iterations.min(MOST_ITERATIONS), ..effort };
    buffer.fill(1.into());
    let mut buffer = Some(buffer);
    let mut timed = |comm: &mut Communicator, starts: bool, units: u64| -> Result<f64> {
        comm.barrier()?;
        let began = Instant::now();
        let taken = buffer.take().expect("an iteration returns the buffer");
        let request = if starts {
            let mut comm = comm.call().algorithm(choice.clone());
            Ok(comm.call_async(call.operation, call.op, taken)?)
        } else {
            Err(taken)
        };
        work(units);
        buffer = Some(request.map_or_else(Ok, Request::wait)?);
        Ok(began.elapsed().as_secs_f64() * 1e6)
    };
    let mut median_us = |comm: &mut Communicator, starts, units| -> Result<f64> {
        let mut times_us = Vec::new();
        for iteration in 0..effort.warm_up + effort.iterations {
            let time_us = timed(comm, starts, units)?;
            if iteration >= effort.warm_up {
                times_us.push(time_us);
            }
        }
        Ok(slowest(comm, times_us)?.p50)
    };
    let alone_us = match median_us(comm, true, 0) {
        Err(Error::Unsupported(_)) => return Ok(None),
        alone_us => alone_us?,
    };
    let unit_us = median_us(comm, false, UNITS)? / UNITS as f64;
    let units = (alone_us / unit_us).ceil() as u64;
    let (compute_us, both_us) = (median_us(comm, false, units)?, median_us(comm, true, units)?);
    let hidden = (alone_us + compute_us - both_us) / alone_us;
    Ok(Some(100.0 * hidden.clamp(0.0, 1.0)))
}

/// Computes a fixed amount of work, not for a fixed time: a rank that loses its core meanwhile takes longer.
fn work(units: u64) {
    let mut state = 1_u64;
    for unit in 0..units {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(unit));
    }
}
