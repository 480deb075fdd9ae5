//! Barriers, which have no array to look at: what is looked at is when ranks come and leave.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use crate::Communicator;
use crate::call::{Call, Ran, Why};
use crate::collective::Collective as _;
use crate::error::Result;
use crate::kernels::ReduceOp;
use crate::method::Method;
use crate::select::Choice;

/// When a rank came to a barrier, and when it left, in nanoseconds of the node's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moments {
    came: i64,
    left: i64,
}

/// Carries out a barrier that all ranks come to at about the same time; what ran, and how long it took this rank.
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
            let method = Method::Algorithm(Communicator::OF_BARRIER);
            Ran { method, why: Why::AskedFor, link: comm.transport() }
        }
    };
    let time_us = began.elapsed().as_secs_f64() * 1e6;
    moments.push(Moments { came, left: now() });
    Ok((ran, time_us))
}

/// A clock that all processes of a node read alike.
fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// How many barriers a rank left before all had come. Nodes have clocks of their own, so that is not known of more than one.
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
    fn who_leaves_early_is_noticed() {
        let wrong = crate::threads(3, |mut comm| {
            let mut moments = Vec::new();
            for _ in 0..5 {
                timed(&mut comm, &Choice::Auto, &mut moments).unwrap();
            }
            let right = left_early(&mut comm, &moments).unwrap();
            // As if rank 1 had gone through the third without the others.
            if comm.rank() == 1 {
                moments[2].left = moments[2].came - 1_000_000_000;
            }
            (right, left_early(&mut comm, &moments).unwrap())
        });
        assert_eq!(wrong, [(0, 1); 3]);
    }
}
