//! Memory that the ranks of a node share, and waits for values there.

use std::sync::atomic::{AtomicU64, Ordering};

use unisono_collectives::Rank;

use super::Communicator;
use crate::collective::Options;
use crate::dtype::Element;
use crate::error::{Error, Place, Result};
use crate::memory::{Shared, SharedCounters};
use crate::record::POINT_TO_POINT;
use crate::transport::{Waiting, common, gather};

impl Communicator {
    /// Returns an array that all ranks share, which must be on one node; its elements are initially zero. All ranks call it, with
    /// the same count (`MPI_Win_allocate_shared`). It may be dropped before or after the communicator, and leaves nothing behind.
    ///
    /// ```
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let array = comm.alloc_shared::<f32>(2)?;
    ///     let own = comm.rank()..comm.rank() + 1;
    ///     // SAFETY: each rank writes its own element.
    ///     unsafe { array.slice_mut(own) }.fill(1.0 + comm.rank() as f32);
    ///     comm.barrier()?;
    ///     // SAFETY: after the barrier no rank writes.
    ///     assert_eq!(unsafe { array.slice(0..2) }, [1.0, 2.0]);
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the ranks are on several nodes; [`Error::Mismatch`] if ranks pass different counts; [`Error::Memory`] if a rank does not get the memory, on all ranks; as
    /// [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If the size in bytes overflows `usize`.
    pub fn alloc_shared<T: Element>(&mut self, count: usize) -> Result<Shared<T>> {
        let nodes = self.topology().nodes();
        if nodes > 1 {
            return Err(Error::Unsupported(format!(
                "ranks on {nodes} nodes cannot share memory: make a group of the ranks of each"
            )));
        }
        let size_bytes = count.checked_mul(size_of::<T>()).expect("the size overflows");
        let all = gather(&mut self.as_bootstrap("alloc_shared"), &size_bytes)?;
        self.check_same("alloc_shared", &all, |rank| format!("alloc_shared of {} bytes", all[rank]))?;
        let rank = self.rank();
        let among_all = |own: [u64; 3]| gather(&mut self.as_bootstrap("alloc_shared"), &own);
        let pages = common(among_all, rank == 0, size_bytes, Ok)?;
        pages.map(|pages| Shared::new(pages, count)).map_err(|(other, cause)| {
            let cause = std::io::Error::from(cause);
            let text = format!(
                "rank {other} cannot map memory that the ranks share (reported by rank {rank}): {cause}"
            );
            Error::Memory { size_bytes, cause: std::io::Error::new(cause.kind(), text) }
        })
    }

    /// Returns counters that all ranks share, initially zero, as [`Communicator::alloc_shared`] does.
    ///
    /// # Errors
    /// As [`Communicator::alloc_shared`].
    pub fn alloc_counters(&mut self, count: usize) -> Result<SharedCounters> {
        self.alloc_shared::<u64>(count).map(SharedCounters::new)
    }

    /// Waits until a shared counter, which rank `other` increases, has at least this value. All writes of the rank that stored it
    /// are then visible here (acquire).
    ///
    /// ```
    /// use std::sync::atomic::Ordering;
    ///
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let turns = comm.alloc_counters(1)?;
    ///     if comm.rank() == 1 {
    ///         comm.wait_until(0, turns.get(0), 1)?;
    ///     } else {
    ///         turns.get(0).store(1, Ordering::Release);
    ///     }
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Left`] and [`Error::Aborted`] if that rank does not; the communicator is then lost.
    ///
    /// # Panics
    /// If `other` is not a rank of this world.
    pub fn wait_until(&mut self, other: Rank, counter: &AtomicU64, value: u64) -> Result<()> {
        let ranks = self.ranks();
        assert!(other < ranks, "rank {other} is not in a world of {ranks} ranks");
        let options = self.per_call.options.clone();
        self.wait_for_counter("wait-until", other, &options, (counter, value), None)
    }

    /// Waits until rank `other` has increased a counter in shared memory to a value. Calls in flight continue meanwhile. `call` describes the call
    /// in which this rank waits, if the other must make it too.
    pub(super) fn wait_for_counter(
        &mut self,
        operation: &'static str,
        other: Rank,
        options: &Options,
        (counter, value): (&AtomicU64, u64),
        call: Option<&str>,
    ) -> Result<()> {
        if counter.load(Ordering::Acquire) >= value {
            return Ok(());
        }
        self.begin_here()?;
        let engine = self.engine_owner.here();
        let (deadlines, spins) = match engine {
            Some(engine) => (engine.deadlines(options), engine.transport.spins()),
            None => (options.deadlines(&self.engine_owner.limits().usual).into_owned(), 0),
        };
        let waiting = Waiting::new(spins, &deadlines, &self.status);
        // The communication thread may record its own waits meanwhile.
        let waiting = if engine.is_some() { waiting } else { waiting.unrecorded() };
        let disagreement = || engine?.calls.mismatch(call?, other, &self.status);
        let waited = waiting.until_counter(other, (counter, value), disagreement);
        waited.or_else(|failure| {
            let (rank, algorithm) = (self.rank, POINT_TO_POINT);
            let at = Place { rank, operation, sequence: value, algorithm, phase: algorithm, step: 0 };
            let error = failure.at(at, &self.status);
            let (first, cause) = error.first_cause(rank);
            self.end_calls_in_flight(first, &cause);
            self.engine_owner.engine().settle(Err(error))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use crate::error::{Error, Result};
    use crate::record::Stage;

    #[test]
    fn different_counts_are_a_mismatch_on_every_rank() {
        let ended = crate::threads(2, |mut comm| comm.alloc_shared::<f32>(2 + comm.rank()).map(drop));
        for (rank, ended) in ended.into_iter().enumerate() {
            let error = ended.unwrap_err();
            assert!(matches!(&error, Error::Mismatch { other, .. } if *other == 1 - rank), "{error}");
            assert!(error.to_string().contains("called alloc_shared of 8 bytes"), "{error}");
        }
    }

    #[test]
    fn wait_for_a_counter_is_not_one_of_a_call_in_flight() {
        let ended = crate::threads(3, |mut comm| -> Result<()> {
            let counters = comm.alloc_counters(1)?;
            let counter = counters.get(0);
            if comm.rank() == 1 {
                comm.wait_until(2, counter, 1)?;
                return comm.barrier();
            }
            let barrier = comm.barrier_async()?;
            if comm.rank() == 0 {
                comm.wait_until(2, counter, 1)?;
            } else {
                let awaited =
                    || comm.status().doing(0).last.filter(|last| last.stage == Stage::Running)?.waits_for;
                let began = Instant::now();
                while awaited() != Some(1) {
                    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", awaited());
                    sleep(Duration::from_millis(1));
                }
                for _ in 0..100 {
                    sleep(Duration::from_millis(3));
                    assert_eq!(awaited(), Some(1));
                }
                counter.store(1, Ordering::Release);
            }
            barrier.wait()
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}
