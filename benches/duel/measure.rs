//! Turns and rounds. In each round every contender has a turn of some calls, in rotating order; the time of a turn is that
//! of the slowest rank. Reported are medians over rounds, and medians of the ratios within a round, which do not depend on
//! the changing speed of the machine.

use std::time::{Duration, Instant};

use unisono::mpi::collective::SystemOperation;
use unisono::mpi::topology::SimpleCommunicator;
use unisono::mpi::traits::*;

use super::arena::{Arena, Contender};
use super::case::{Case, State};

/// The measurements of a case.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) ranks: usize,
    pub(crate) calls: usize,
    pub(crate) contenders: Vec<Contender>,
    /// The time of one call in each round, for each contender.
    times_us: Vec<Vec<f64>>,
}

impl Row {
    pub(crate) fn rounds(&self) -> usize {
        self.times_us[0].len()
    }

    fn times(&self, contender: Contender) -> Option<&Vec<f64>> {
        let position = self.contenders.iter().position(|&other| other == contender)?;
        Some(&self.times_us[position])
    }

    /// Returns the median over rounds.
    pub(crate) fn time_us(&self, contender: Contender) -> Option<f64> {
        self.times(contender).map(|times| median(times.clone()))
    }

    /// Returns the ratio of the times of two contenders, as the median over rounds.
    pub(crate) fn ratio(&self, one: Contender, other: Contender) -> Option<f64> {
        let (one, other) = (self.times(one)?, self.times(other)?);
        Some(median(one.iter().zip(other).map(|(one, other)| one / other).collect()))
    }

    /// Returns the faster bare loop for memory that both ranks can access.
    pub(crate) fn floor(&self) -> Contender {
        let [joint, exchange] =
            [Contender::FloorJoint, Contender::FloorExchange].map(|floor| self.time_us(floor));
        if joint <= exchange { Contender::FloorJoint } else { Contender::FloorExchange }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The bytes of a turn, and the largest number of its calls.
const TURN_BYTES: usize = 4 << 20;
const MOST_CALLS: usize = 200;
/// The number of warm-up rounds, and the limits for the number of measured rounds.
const WARM_UP: usize = 2;
const LEAST_ROUNDS: f64 = 5.0;
const MOST_ROUNDS: f64 = 1001.0;

/// Measures for about this long. All ranks call it, and get the times of the slowest rank.
pub(crate) fn measure(arena: &mut Arena<'_>, world: &SimpleCommunicator, budget: Duration) -> Row {
    for contender in arena.contenders.clone() {
        arena.check(contender);
        // Repeated sums overflow to infinity and NaN; sums of zeros stay zero.
        arena.write(contender, |_| 0.0);
    }
    let calls = (TURN_BYTES / arena.case.size_bytes.max(1)).clamp(2, MOST_CALLS);
    let began = Instant::now();
    for number in 0..WARM_UP {
        round(arena, number, calls);
    }
    let one_round = began.elapsed().as_secs_f64() / WARM_UP as f64;
    let mut rounds = (budget.as_secs_f64() / one_round).clamp(LEAST_ROUNDS, MOST_ROUNDS) as u64;
    world.process_at_rank(0).broadcast_into(&mut rounds);
    let mut times_us = vec![Vec::new(); arena.contenders.len()];
    for number in 0..rounds as usize {
        for (times, time) in times_us.iter_mut().zip(round(arena, number, calls)) {
            times.push(time);
        }
    }
    let slowest = |times: Vec<f64>| {
        let mut slowest = times.clone();
        world.all_reduce_into(&times, &mut slowest, SystemOperation::max());
        slowest
    };
    let times_us = times_us.into_iter().map(slowest).collect();
    Row { case: arena.case, ranks: arena.ranks, calls, contenders: arena.contenders.clone(), times_us }
}

/// Gives each contender a turn; returns the time of one call of each.
fn round(arena: &mut Arena<'_>, number: usize, calls: usize) -> Vec<f64> {
    let mut times_us = vec![0.0; arena.contenders.len()];
    for turn in 0..times_us.len() {
        let position = (turn + number) % times_us.len();
        let contender = arena.contenders[position];
        let time = match arena.case.state {
            State::Warm => warm(arena, contender, calls),
            State::Written => written(arena, contender, calls),
        };
        times_us[position] = time.as_secs_f64() * 1e6 / calls as f64;
    }
    times_us
}

fn warm(arena: &mut Arena<'_>, contender: Contender, calls: usize) -> Duration {
    arena.barrier.wait();
    // The first call is not measured: it finds the caches as another contender left them.
    arena.run(contender);
    let began = Instant::now();
    for _ in 0..calls {
        arena.run(contender);
    }
    began.elapsed()
}

fn written(arena: &mut Arena<'_>, contender: Contender, calls: usize) -> Duration {
    let mut time = Duration::ZERO;
    for _ in 0..calls {
        arena.write(contender, |_| 1.0);
        arena.barrier.wait();
        let began = Instant::now();
        arena.run(contender);
        time += began.elapsed();
    }
    time
}
