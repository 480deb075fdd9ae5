//! Memory that the ranks of a node share, and waiting for what others do there.

use std::sync::atomic::AtomicU64;

use rustix::fd::AsRawFd as _;
use unisono_collectives::Rank;

use super::Communicator;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::memory::{Pages, Shared, SharedCounters};

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
        // Kept open until all have mapped it.
        let made = (self.rank() == 0).then(|| Pages::shared(size_bytes));
        let (file, own) = match made {
            Some(Ok((file, pages))) => (Some(file), Some(Ok(pages))),
            Some(Err(error)) => (None, Some(Err(error))),
            None => (None, None),
        };
        let number = file.as_ref().map_or(u64::MAX, |file| file.as_raw_fd() as u64);
        let all = self.gather_words(&[u64::from(std::process::id()), number, size_bytes as u64])?;
        let called = |words: &[u64]| format!("alloc_shared of {} bytes", words[2]);
        self.check_same("alloc_shared", &all, |words| &words[2..], called)?;
        let place = &all[0];
        let pages = match own {
            Some(own) => own,
            None => Pages::of_process(place[0] as i32, place[1]),
        };
        let (rank, failed) = (self.rank(), pages.as_ref().err().map_or(0, |error| error.raw_os_error()));
        let all = self.gather_words(&[failed as u64])?;
        match all.iter().position(|failed| failed[0] != 0) {
            None => Ok(Shared::new(pages.expect("no rank has failed"), count)),
            Some(other) => {
                let cause = std::io::Error::from_raw_os_error(all[other][0] as i32);
                let said = format!(
                    "rank {other} cannot map memory that the ranks share (seen on rank {rank}): {cause}"
                );
                Err(Error::Memory { size_bytes, cause: std::io::Error::new(cause.kind(), said) })
            }
        }
    }

    /// Counters that all ranks share, initially zero: as [`Communicator::alloc_shared`].
    ///
    /// # Errors
    /// As [`Communicator::alloc_shared`].
    pub fn alloc_counters(&mut self, count: usize) -> Result<SharedCounters> {
        self.alloc_shared::<u64>(count).map(SharedCounters::new)
    }

    /// Waits until a shared counter has a value, which rank `other` gives it. What was written before, by the rank that has counted
    /// up to there, is then seen here.
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
    pub fn wait_until(&mut self, other: Rank, counter: &AtomicU64, value: u64) -> Result<()> {
        self.seat.engine().wait_until("wait-until", other, &self.per_call.options, (counter, value))
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;

    #[test]
    fn different_counts_are_a_mismatch_on_every_rank() {
        let ended = crate::threads(2, |mut comm| comm.alloc_shared::<f32>(2 + comm.rank()).map(drop));
        for (rank, ended) in ended.into_iter().enumerate() {
            let error = ended.unwrap_err();
            assert!(matches!(&error, Error::Mismatch { other, .. } if *other == 1 - rank), "{error}");
            assert!(error.to_string().contains("called alloc_shared of 8 bytes"), "{error}");
        }
    }
}
