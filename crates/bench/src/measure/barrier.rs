//! Measurement of barriers. They have no array, so the times at which ranks arrive and leave are checked.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use unisono::internals::OF_BARRIER;
use unisono::{Call, Choice, Collective as _, Communicator, Method, Ran, ReduceOp, Result, Why};

/// The times at which a rank reached a barrier and left it, in nanoseconds of the node's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moments {
    came: i64,
    left: i64,
}

/// Executes a barrier at which all ranks arrive at about the same time. Returns the method that ran, and this rank's time.
pub(super) fn timed(
    comm: &mut Communicator,
    choice: &Choice,
    moments: &mut Vec<Moments>,
) -> Result<(Ran, f64)> {
    comm.barrier()?;
    let (came, began) = (now(), Instant::now());
    let ran = match choice {
        Choice::Method(Method::Vendor(_)) => {
            comm.collective(choice.clone())?.run(&Call::barrier(), &mut [])?
        }
        _ => {
            comm.barrier()?;
            let method = Method::Algorithm(OF_BARRIER);
            Ran { method, why: Why::AskedFor, link: comm.transport() }
        }
    };
    let time_us = began.elapsed().as_secs_f64() * 1e6;
    moments.push(Moments { came, left: now() });
    Ok((ran, time_us))
}

/// Returns a clock that is the same for all processes of a node.
fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Returns the number of barriers that a rank left before all had arrived. Only known on a single node: nodes have separate
/// clocks.
pub(super) fn left_early(comm: &mut Communicator, moments: &[Moments]) -> Result<u64> {
    if moments.is_empty() || comm.topology().nodes() > 1 {
        return Ok(0);
    }
    let mut last_came: Vec<_> = moments.iter().map(|moments| moments.came).collect();
    let mut first_left: Vec<_> = moments.iter().map(|moments| moments.left).collect();
    comm.all_reduce(&mut last_came, ReduceOp::Max)?;
    comm.all_reduce(&mut first_left, ReduceOp::Min)?;
    Ok(last_came.iter().zip(&first_left).filter(|(came, left)| left < came).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_departure_from_a_barrier_is_counted() {
        let wrong = unisono::threads(3, |mut comm| {
            let mut moments = Vec::new();
            for _ in 0..5 {
                timed(&mut comm, &Choice::Auto, &mut moments).unwrap();
            }
            let right = left_early(&mut comm, &moments).unwrap();
            // Rank 1 leaves the third barrier without the others.
            if comm.rank() == 1 {
                moments[2].left = moments[2].came - 1_000_000_000;
            }
            (right, left_early(&mut comm, &moments).unwrap())
        });
        assert_eq!(wrong, [(0, 1); 3]);
    }
}
