//! Gradients that exist once on a node: ranks add theirs where they lie, one after the other.
//!
//! **Source**: central storage is TensorFlow's name (`tf.distribute.experimental.CentralStorageStrategy`).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use unisono::{Communicator, Result, Shared, SharedCounters};
use unisono_train::Fill;
use unisono_train::internals::Place;

/// The most elements of a gradient that is computed before its turn comes, in memory of its own.
const EARLY: usize = 1 << 20;

/// The sums of the gradients of all ranks, in memory that these share.
///
/// For each gradient ranks take turns, in their order, pass by pass: so the order of additions is always the same, and a rank that is
/// as fast as the others waits once, for as long as a gradient takes. Only a large gradient is computed in its turn, where it is added:
/// that needs no memory.
#[derive(Debug)]
pub(super) struct CentralGradients {
    /// By bucket.
    sums: Vec<Shared<f32>>,
    /// By parameter: how many turns were taken since the run began.
    turns: SharedCounters,
    /// The turns of each parameter in the steps before.
    before: u64,
    /// This rank's own gradient, if it is computed before its turn.
    early: Vec<f32>,
}

impl CentralGradients {
    /// Room for buckets of this many elements, of this many parameters. Called by all ranks, which must be on one node.
    pub(super) fn new(comm: &mut Communicator, counts: &[usize], parameters: usize) -> Result<Self> {
        let sums = counts.iter().map(|&count| comm.alloc_shared(count)).collect::<Result<_>>()?;
        Ok(Self { sums, turns: comm.alloc_counters(parameters)?, before: 0, early: Vec::new() })
    }

    /// Has `write` add this rank's gradient in a pass of the step, once it is its turn. Returns how long that took to come. All ranks
    /// make as many passes, and put each gradient once in each.
    pub(super) fn put(
        &mut self,
        comm: &mut Communicator,
        (index, place, pass): (usize, &Place, usize),
        write: &mut dyn FnMut(&mut [f32], Fill),
    ) -> Result<Duration> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let (counter, turn) = (self.turns.get(index), self.before + (pass * ranks + rank) as u64);
        let is_first = turn == self.before;
        let is_early = ranks > 1 && !is_first && place.range.len() <= EARLY;
        if is_early {
            self.early.resize(place.range.len(), 0.0);
            write(&mut self.early, Fill::Set);
        }
        let began = Instant::now();
        comm.wait_until((rank + ranks - 1) % ranks, counter, turn)?;
        let waited = began.elapsed();
        // SAFETY: the turn is this rank's until the counter says otherwise, and who reads sums waits for the last turn of the step.
        let sum = unsafe { self.sums[place.bucket].slice_mut(place.range.clone()) };
        match (is_early, is_first) {
            (true, _) => Fill::Add.write(sum, &self.early),
            (false, true) => write(sum, Fill::Set),
            (false, false) => write(sum, Fill::Add),
        }
        counter.store(turn + 1, Ordering::Release);
        Ok(waited)
    }

    /// Ends the passes of a step, this many of each rank. Called by all ranks, which then wait for each other: before they read sums, and
    /// again before the next pass.
    pub(super) fn end(&mut self, ranks: usize, passes: usize) {
        self.before += (ranks * passes) as u64;
    }

    /// Returns the sum of a gradient over all ranks and passes, after [`CentralGradients::end`].
    pub(super) fn sum(&self, place: &Place) -> &[f32] {
        // SAFETY: no rank writes sums between the two waits of a step.
        unsafe { self.sums[place.bucket].slice(place.range.clone()) }
    }
}
