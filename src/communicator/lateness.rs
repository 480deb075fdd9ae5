//! Stragglers: how long each rank computes outside collectives, and how long it waits in them.

use std::fmt;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::Communicator;
use crate::error::Result;

/// The factor by which a straggler is busier than the other ranks.
const STANDS_OUT: f64 = 1.2;

/// The time for which a rank was busy, and the time for which it waited for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// All time except the waits.
    pub busy: Duration,
    /// The time spent waiting for other ranks in collectives, including non-blocking ones that overlap with computation. The
    /// first 0.1 ms or so of each wait is not counted.
    pub waited: Duration,
}

/// The busy and waiting time of every rank, the same on all ranks: the result of [`Communicator::lateness`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lateness {
    /// By rank, since the previous call.
    pub ranks: Vec<Times>,
}

impl Lateness {
    /// Returns the rank that was busy longest, for which the others waited.
    pub fn slowest(&self) -> Rank {
        // The lowest of several.
        let busiest = (0..self.ranks.len()).max_by_key(|&rank| (self.ranks[rank].busy, usize::MAX - rank));
        busiest.unwrap_or(0)
    }

    /// Returns the straggler, if there is one, and the median busy time of the other ranks. A straggler is busy for over a fifth
    /// longer than that median. Smaller differences are noise.
    ///
    /// ```
    /// use std::time::Duration;
    /// use unisono::{Lateness, Times};
    ///
    /// let busy = |seconds: &[u64]| Lateness {
    ///     ranks: seconds.iter().map(|&s| Times { busy: Duration::from_secs(s), waited: Duration::ZERO }).collect(),
    /// };
    /// assert_eq!(busy(&[30, 10, 11]).straggler(), Some((0, Duration::from_secs(11))));
    /// assert_eq!(busy(&[30, 29, 28]).straggler(), None, "two that are slow are not one");
    /// ```
    pub fn straggler(&self) -> Option<(Rank, Duration)> {
        let slowest = self.slowest();
        let others = (0..self.ranks.len()).filter(|&rank| rank != slowest);
        let mut others: Vec<_> = others.map(|rank| self.ranks[rank].busy).collect();
        others.sort();
        let median = *others.get(others.len() / 2)?;
        (self.ranks[slowest].busy > median.mul_f64(STANDS_OUT)).then_some((slowest, median))
    }
}

/// Formats `rank 3 is slowest: busy for 12.1 s, where the others are for 10.0 s on average and wait for 2.1 s`.
impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slowest = self.slowest();
        let others =
            self.ranks.iter().enumerate().filter(|&(rank, _)| rank != slowest).map(|(_, times)| times);
        let count = (self.ranks.len().max(2) - 1) as f64;
        let mean = |time: fn(&Times) -> Duration| {
            others.clone().map(|times| time(times).as_secs_f64()).sum::<f64>() / count
        };
        let busy = self.ranks.get(slowest).map_or(0.0, |times| times.busy.as_secs_f64());
        let (others, waited) = (mean(|times| times.busy), mean(|times| times.waited));
        write!(
            f,
            "rank {slowest} is slowest: busy for {busy:.3} s, where the others are for {others:.3} s on average and wait \
             for {waited:.3} s"
        )
    }
}

impl Communicator {
    /// Returns the times for which each rank was busy and waited for others, since the previous call or the start of the
    /// communicator. All ranks call it; it costs an all-gather of 16 bytes per rank.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     if comm.rank() == 1 {
    ///         std::thread::sleep(Duration::from_millis(300));
    ///     }
    ///     comm.barrier()?;
    ///     assert_eq!(comm.lateness()?.slowest(), 1);
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn lateness(&mut self) -> Result<Lateness> {
        // Completes the calls in flight first, so that their waits count.
        self.engine_owner.engine();
        let (now, waited_so_far) = (Instant::now(), self.status.waited());
        let (began, waited_before) = std::mem::replace(&mut self.interval, (now, waited_so_far));
        let passed = now - began;
        let waited = waited_so_far.saturating_sub(waited_before).min(passed);
        self.compare_times(Times { busy: passed - waited, waited })
    }

    /// Like [`lateness`](Self::lateness), from times that each rank measured itself, such as the step times of a
    /// training loop. All ranks call it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn compare_times(&mut self, Times { busy, waited }: Times) -> Result<Lateness> {
        let mut micros = vec![0_u64; 2 * self.ranks()];
        let own = &mut micros[2 * self.rank()..][..2];
        own.copy_from_slice(&[busy.as_micros() as u64, waited.as_micros() as u64]);
        self.call().of_library("lateness").all_gather(&mut micros)?;
        let times = |of_rank: &[u64]| Times {
            busy: Duration::from_micros(of_rank[0]),
            waited: Duration::from_micros(of_rank[1]),
        };
        let lateness = Lateness { ranks: micros.chunks_exact(2).map(times).collect() };
        if let (Some(observer), Some((straggler, _))) = (self.status.observer(), lateness.straggler()) {
            observer.straggler(straggler);
        }
        Ok(lateness)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;

    #[test]
    fn options_of_single_calls_do_not_apply_to_calls_of_the_library() {
        let ended = crate::threads(2, |mut comm| -> Result<()> {
            let mut call = comm.call().counts(&[1, 2]).element_bytes(NonZero::new(3).unwrap());
            assert_eq!(call.lateness()?.ranks.len(), 2);
            call.on_rank0("reading", || Ok::<_, String>(()))?;
            let mut bytes = [0_u8; 9];
            let own = call.own_part(3);
            bytes[3 * own.start..3 * own.end].fill(1);
            call.all_gather(&mut bytes)?;
            assert_eq!(bytes, [1; 9], "they still apply to those of the program");
            Ok(())
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}
