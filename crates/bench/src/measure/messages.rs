//! Measurement of messages between the first and the last rank: latency as in osu_latency, and bandwidth as in osu_bw.

use std::sync::Arc;
use std::time::Instant;

use unisono::{Communicator, Element, Request, Result};

use super::Effort;

/// The number of messages in flight of a bandwidth measurement, and the limit of their total size, for which fewer large messages
/// are in flight.
const WINDOW: usize = 64;
const WINDOW_BYTES: usize = 1 << 26;
const MOST_WINDOWS: usize = 100;
/// Values repeat after this many elements.
const PERIOD: usize = 251;

/// The measurements. Ranks other than the first and the last have zeros.
pub(super) struct Messages {
    /// Half the time of each round trip.
    pub(super) half_trips_us: Vec<f64>,
    /// The time of each window, until the first rank has received the reply to its last message.
    pub(super) windows_us: Vec<f64>,
    pub(super) window: usize,
    /// The number of wrong elements, in the message with the most.
    pub(super) wrong: u64,
}

/// Measures round trips of messages of this many elements, then windows of them. All ranks call it, at least two.
pub(super) fn measure<T: Element + From<u8>>(
    comm: &mut Communicator,
    count: usize,
    effort: Effort,
) -> Result<Messages> {
    comm.barrier()?;
    let (first, last) = (0, comm.ranks() - 1);
    let windows = effort.iterations.min(MOST_WINDOWS);
    let window = (WINDOW_BYTES / (count * size_of::<T>())).clamp(2, WINDOW);
    let (half_trips_us, windows_us) = (vec![0.0; effort.iterations], vec![0.0; windows]);
    let mut messages = Messages { half_trips_us, windows_us, window, wrong: 0 };
    if comm.rank() != first && comm.rank() != last {
        return Ok(messages);
    }
    let mut buffer = vec![T::zeroed(); count];
    for iteration in 0..effort.warm_up + effort.iterations {
        if comm.rank() == last {
            comm.receive(&mut buffer, first)?;
            comm.send(&buffer, first)?;
            continue;
        }
        let values = values::<T>(count, iteration);
        let began = Instant::now();
        comm.send(&values, last)?;
        comm.receive(&mut buffer, last)?;
        let time_us = began.elapsed().as_secs_f64() * 1e6;
        messages.check(effort, &buffer, &values);
        if let Some(measured) = iteration.checked_sub(effort.warm_up) {
            messages.half_trips_us[measured] = time_us / 2.0;
        }
    }
    let mut buffers: Vec<_> = (0..window).map(|_| vec![T::zeroed(); count]).collect();
    for iteration in 0..effort.warm_up + windows {
        let values: Arc<[T]> = values(count, iteration).into();
        let began = Instant::now();
        if comm.rank() == first {
            let sent = (0..window).map(|_| comm.send_async(Arc::clone(&values), last));
            sent.collect::<Result<Vec<_>>>()?.into_iter().try_for_each(|sent| sent.wait().map(drop))?;
            comm.receive(&mut [0_u8], last)?;
        } else {
            let received = buffers.drain(..).map(|buffer| comm.receive_async(buffer, first));
            let received = received.collect::<Result<Vec<_>>>()?;
            buffers = received.into_iter().map(Request::wait).collect::<Result<_>>()?;
            comm.send(&[0_u8], first)?;
            buffers.iter().for_each(|buffer| messages.check(effort, buffer, &values));
        }
        if let Some(measured) = iteration.checked_sub(effort.warm_up) {
            messages.windows_us[measured] = began.elapsed().as_secs_f64() * 1e6;
        }
    }
    if comm.rank() == last {
        messages.windows_us.fill(0.0);
    }
    Ok(messages)
}

impl Messages {
    fn check<T: Element>(&mut self, effort: Effort, found: &[T], expected: &[T]) {
        if effort.checks {
            let wrong = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
            self.wrong = self.wrong.max(wrong as u64);
        }
    }
}

/// Returns the values of an iteration, which differ from those of the previous one.
fn values<T: Element + From<u8>>(count: usize, iteration: usize) -> Vec<T> {
    (iteration..iteration + count).map(|index| T::from((index % PERIOD) as u8)).collect()
}
