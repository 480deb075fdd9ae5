//! The settings that a joining process receives from rank 0: the algorithm choice, the timeouts and the constants of the cost
//! model.

use crate::collective::Limits;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::transport::{Bootstrap, gather};
use crate::tuning::Tuning;

impl Communicator {
    /// Applies the settings of rank 0. All ranks call it.
    pub(crate) fn set_as_rank_0(&mut self, bootstrap: &mut dyn Bootstrap) -> Result<()> {
        let (tuning, cores) = &self.constants;
        let own = (self.engine_owner.engine().limits, self.choice.to_string(), text(tuning), *cores);
        let (limits, choice, tuning, cores): (Limits, String, _, _) = gather(bootstrap, &own)?.swap_remove(0);
        let other = || Error::Launch("rank 0 has another version of unisono".to_owned());
        self.engine_owner.engine().limits = limits;
        self.choice = choice.parse().map_err(|_| other())?;
        self.set_constants((read(&tuning).ok_or_else(other)?, cores));
        Ok(())
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

/// Without the feature that reads constants, a grown world has the default ones, on all ranks.
#[cfg(not(feature = "tuning"))]
fn text(_: &Tuning) -> String {
    String::new()
}

#[cfg(not(feature = "tuning"))]
fn read(_: &str) -> Option<Tuning> {
    Some(Tuning::default())
}
