//! Scripts of worlds in which ranks end and the others continue.

use std::time::Duration;

use unisono::{Communicator, Rank, ReduceOp, Result};
use unisono_testing::random::Random;

/// The steps of a script. The world continues until all scripted ends have happened.
const STEPS: usize = 12;
/// The elements of the arrays of steps.
const COUNTS: [usize; 4] = [1, 700, 60_000, 300_000];
/// The delays before a rank's end.
const DELAYS_US: [u64; 8] = [0, 20, 100, 300, 1000, 5000, 50_000, 250_000];

/// The moment at which a rank ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    BeforeStep,
    AfterStep,
    InStep,
    /// It calls `shrink`, even if no other rank has ended.
    InShrink,
}

/// The end of a rank.
#[derive(Debug, Clone, Copy)]
struct End {
    moment: Moment,
    step: usize,
    delay: Duration,
}

/// The fates of the ranks of a world.
#[derive(Debug)]
pub(super) struct Script {
    seed: u64,
    ends: Vec<Option<End>>,
}

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let ranks = 2 + random.below(5);
        // Several may end at the same step.
        let steps = [random.below(STEPS), random.below(STEPS)];
        let mut ends: Vec<_> = (0..ranks)
            .map(|_| {
                let moments = [Moment::BeforeStep, Moment::AfterStep, Moment::InStep, Moment::InShrink];
                let delay = Duration::from_micros(random.one_of(&DELAYS_US));
                let end = End { moment: random.one_of(&moments), step: random.one_of(&steps), delay };
                random.once_in(2).then_some(end)
            })
            .collect();
        ends[random.below(ranks)] = None;
        Self { seed, ends }
    }

    pub(super) fn ranks(&self) -> usize {
        self.ends.len()
    }

    /// Returns the ranks that do not end.
    pub(super) fn survivors(&self) -> Vec<Rank> {
        (0..self.ranks()).filter(|&rank| self.ends[rank].is_none()).collect()
    }

    /// Plays a rank. Returns the ranks of the last world. `end` ends this rank after a while.
    pub(super) fn play(&self, mut comm: Communicator, end: impl Fn(Moment, Duration)) -> Result<Vec<Rank>> {
        let own = comm.rank();
        let random = &mut Random::of(self.seed, own as u64);
        let mut ranks: Vec<_> = (0..self.ranks()).collect();
        let mut step = 0;
        loop {
            let ending = self.ends[own].filter(|end| end.step == step);
            let ends_in = |moment| ending.filter(|end| end.moment == moment);
            let ends = |moment| {
                ends_in(moment).is_some_and(|ending| {
                    end(moment, ending.delay);
                    true
                })
            };
            ends(Moment::BeforeStep);
            ends(Moment::InStep);
            let done = if ends(Moment::InShrink) {
                Ok(false)
            } else {
                work(&mut comm, &ranks, step, random).map(|()| true)
            };
            match done {
                Ok(true) => {
                    ends(Moment::AfterStep);
                    step += 1;
                    if step >= STEPS && ranks.len() == self.survivors().len() {
                        return Ok(ranks);
                    }
                    continue;
                }
                Ok(false) => {}
                Err(error) => assert!(error.is_fatal(), "seed {}, rank {own}: {error}", self.seed),
            }
            comm = comm.shrink()?;
            ranks = comm.former_ranks().iter().map(|&rank| ranks[rank]).collect();
            assert_eq!(ranks[comm.rank()], own, "seed {}", self.seed);
            // If this fails, so does the next step.
            let mut least = [step as u64];
            if comm.all_reduce(&mut least, ReduceOp::Min).is_ok() {
                step = least[0] as usize;
            }
        }
    }
}

/// Makes a step with every kind of call.
fn work(comm: &mut Communicator, ranks: &[Rank], step: usize, random: &mut Random) -> Result<()> {
    let expected = ranks.iter().map(|rank| 1 << rank).sum::<u64>();
    let (count, own) = (COUNTS[step % COUNTS.len()], 1 << ranks[comm.rank()]);
    random.delay();
    let array = match step % 5 {
        0 => {
            let mut array = comm.alloc::<u64>(count)?;
            array.fill(own);
            comm.all_reduce(&mut array, ReduceOp::Sum)?;
            array.to_vec()
        }
        1 => comm.all_reduce_async(vec![own; count], ReduceOp::Sum)?.wait()?,
        2 => around(comm, vec![own; count])?,
        3 => {
            let mut group = comm.split(Some(0), 0)?.expect("all ranks are in it");
            let mut array = vec![own; count];
            group.all_reduce(&mut array, ReduceOp::Sum)?;
            array
        }
        _ => {
            let mut array = vec![own; count];
            comm.all_reduce(&mut array, ReduceOp::Sum)?;
            array
        }
    };
    assert!(
        array.iter().all(|&sum| sum == expected),
        "step {step} of {ranks:?}: {} is not {expected}",
        array[0]
    );
    Ok(())
}

/// Returns a sum, computed with messages around the ring of ranks.
fn around(comm: &mut Communicator, own: Vec<u64>) -> Result<Vec<u64>> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let mut sum = own.clone();
    let mut passed = own;
    for _ in 1..ranks {
        let sent = comm.send_async(passed.clone(), (rank + 1) % ranks)?;
        comm.receive(&mut passed, (rank + ranks - 1) % ranks)?;
        sent.wait()?;
        sum.iter_mut().zip(&passed).for_each(|(sum, passed)| *sum += passed);
    }
    Ok(sum)
}
