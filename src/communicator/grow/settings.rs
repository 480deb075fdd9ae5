//! The settings that a process that joins takes over from rank 0: the algorithm choice, the timeouts and the constants of the cost model.

use std::time::Duration;

use crate::collective::Limits;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::transport::{Bootstrap, Deadlines};
use crate::tuning::Tuning;

/// The number of numeric settings: two deadlines of calls, two of the first call, and the cores of a node.
const NUMBERS: usize = 5;

impl Communicator {
    /// Sets what is set on rank 0. All ranks call it.
    pub(crate) fn set_as_rank_0(&mut self, bootstrap: &mut dyn Bootstrap) -> Result<()> {
        let all = bootstrap.all_gather(&self.settings())?;
        let other = || Error::Launch("rank 0 is another version of unisono".to_owned());
        self.set_settings(&all[0]).ok_or_else(other)
    }

    fn settings(&mut self) -> Vec<u8> {
        let Limits { usual, first } = self.seat.engine().limits;
        let times = [usual.timeout, usual.quiet, first.timeout, first.quiet];
        let [a, b, c, d] = times.map(|time| time.as_millis().min(u128::from(u64::MAX)) as u64);
        let (tuning, cores) = &self.constants;
        let numbers: [u64; NUMBERS] = [a, b, c, d, *cores as u64];
        let numbers = numbers.map(u64::to_le_bytes);
        [numbers.as_flattened(), format!("{}\n{}", self.choice, text(tuning)).as_bytes()].concat()
    }

    fn set_settings(&mut self, settings: &[u8]) -> Option<()> {
        let (numbers, texts) = settings.split_first_chunk::<{ 8 * NUMBERS }>()?;
        let (numbers, _) = numbers.as_chunks::<8>();
        let number = |place: usize| u64::from_le_bytes(numbers[place]);
        let time = |place: usize| Duration::from_millis(number(place));
        let deadlines = |first| Deadlines { timeout: time(first), quiet: time(first + 1) };
        let (choice, tuning) = std::str::from_utf8(texts).ok()?.split_once('\n')?;
        self.seat.engine().limits = Limits { usual: deadlines(0), first: deadlines(2) };
        self.choice = choice.parse().ok()?;
        self.set_constants((read(tuning)?, number(4) as usize));
        Some(())
    }
}

#[cfg(feature = "tuning")]
fn text(tuning: &Tuning) -> String {
    let section = |reach| (reach, tuning.section(reach).clone());
    crate::tuning::write(&crate::tuning::Reach::ALL.map(section))
}

#[cfg(feature = "tuning")]
fn read(text: &str) -> Option<Tuning> {
    text.parse().ok()
}

/// Without the feature that reads constants, a world that has grown has the default ones, on all ranks.
#[cfg(not(feature = "tuning"))]
fn text(_: &Tuning) -> String {
    String::new()
}

#[cfg(not(feature = "tuning"))]
fn read(_: &str) -> Option<Tuning> {
    Some(Tuning::default())
}
