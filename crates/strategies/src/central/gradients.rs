//! Gradients with one copy per node. Ranks add their gradients in place, one after the other.
//!
//! **Source**: central storage is TensorFlow's name (`tf.distribute.experimental.CentralStorageStrategy`).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use unisono::{Communicator, Rank, ReduceOp, Result, Shared, SharedCounters};
use unisono_train::Fill;
use unisono_train::internals::Place;

/// The maximum number of elements of a gradient that is computed into a separate buffer before its turn comes.
const EARLY: usize = 1 << 20;

/// The sums of the gradients of all ranks, in shared memory.
///
/// Ranks add each gradient in the order of their numbers, pass by pass, so the order of additions is always the same. If all ranks are equally fast,
/// each waits only once, for the duration of one gradient. A large gradient is computed only in its turn, directly into the sum, which needs no extra
/// memory.
///
/// Ranks without samples take the last turns of a pass. Such a rank may have to [take part](unisono_train::Replica::synchronizes) in the other ranks'
/// passes before it puts its zeros, so these ranks must not wait for it.
#[derive(Debug)]
pub(super) struct CentralGradients {
    /// The sums, by bucket.
    sums: Vec<Shared<f32>>,
    /// The number of turns taken since the run began, by parameter.
    turns: SharedCounters,
    /// The number of turns of each parameter in previous steps.
    before: u64,
    /// The ranks in the order of their turns in this step, pass by pass. The same on all ranks.
    order: Vec<Rank>,
    /// This rank's own gradient, if it is computed before its turn.
    early: Vec<f32>,
}

impl CentralGradients {
    /// Allocates buckets with these numbers of elements, for this many parameters. Called by all ranks, which must be on one node.
    pub(super) fn new(comm: &mut Communicator, counts: &[usize], parameters: usize) -> Result<Self> {
        let sums = counts.iter().map(|&count| comm.alloc_shared(count)).collect::<Result<_>>()?;
        let (order, early) = (Vec::new(), Vec::new());
        Ok(Self { sums, turns: comm.alloc_counters(parameters)?, before: 0, order, early })
    }

    /// Begins a step in which this rank has this many passes. `has_samples` returns whether it has samples for a pass. Returns the number of passes,
    /// which is the same on all ranks. Called by all ranks.
    pub(super) fn begin(
        &mut self,
        comm: &mut Communicator,
        passes: usize,
        has_samples: &dyn Fn(usize) -> bool,
    ) -> Result<usize> {
        let mut most = [passes as u64];
        comm.all_reduce(&mut most, ReduceOp::Max)?;
        let (passes, rank, ranks) = (most[0] as usize, comm.rank(), comm.ranks());
        let mut has = vec![0_u64; passes * ranks];
        for pass in 0..passes {
            has[pass * ranks + rank] = has_samples(pass).into();
        }
        comm.all_reduce(&mut has, ReduceOp::Max)?;
        self.order.clear();
        for has in has.chunks_exact(ranks) {
            let of = |is_full: u64| (0..ranks).filter(move |&rank| has[rank] == is_full);
            self.order.extend(of(1).chain(of(0)));
        }
        Ok(passes)
    }

    /// Calls `write` to add this rank's gradient in a pass of the step, once it is this rank's turn. Returns the time that it waited for its turn.
    /// All ranks put each gradient once in every pass that [began](CentralGradients::begin).
    pub(super) fn put(
        &mut self,
        comm: &mut Communicator,
        (index, place, pass): (usize, &Place, usize),
        write: &mut dyn FnMut(&mut [f32], Fill),
    ) -> Result<Duration> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let first = pass * ranks;
        let own = self.order[first..].iter().position(|&other| other == rank);
        let at = first + own.expect("each rank has a turn in each pass");
        let (counter, turn) = (self.turns.get(index), self.before + at as u64);
        let is_first = at == 0;
        let is_early = ranks > 1 && !is_first && place.range.len() <= EARLY;
        if is_early {
            self.early.resize(place.range.len(), 0.0);
            write(&mut self.early, Fill::Set);
        }
        let began = Instant::now();
        // The turns of the previous step are over, so the first rank does not wait.
        comm.wait_until(self.order[at.saturating_sub(1)], counter, turn)?;
        let waited = began.elapsed();
        // SAFETY: the turn belongs to this rank until it increments the counter, and readers of sums wait for the last turn of the step.
        let sum = unsafe { self.sums[place.bucket].slice_mut(place.range.clone()) };
        match (is_early, is_first) {
            (true, _) => Fill::Add.write(sum, &self.early),
            (false, true) => write(sum, Fill::Set),
            (false, false) => write(sum, Fill::Add),
        }
        counter.store(turn + 1, Ordering::Release);
        Ok(waited)
    }

    /// Ends the passes of a step, of which each rank has made this many. Called by all ranks. They must synchronise before they read sums, and again
    /// before the next pass.
    pub(super) fn end(&mut self, ranks: usize, passes: usize) {
        self.before += (ranks * passes) as u64;
    }

    /// Returns the sum of a gradient over all ranks and passes, after [`CentralGradients::end`].
    pub(super) fn sum(&self, place: &Place) -> &[f32] {
        // SAFETY: no rank writes sums between the two synchronisations of a step.
        unsafe { self.sums[place.bucket].slice(place.range.clone()) }
    }
}
