//! The verification of replicas, and the checkpoints of a run.

use std::time::Instant;

use super::Trainer;
use crate::arrays::{SAVES, gather};
use crate::checkpoint::{Checkpoint, Tensor};
use crate::compare;
use crate::resident::bytes_per_rank;
use crate::resume::snapshot;
use crate::state::not_saved;
use crate::{EpochReport, Feed, Progress, Replica, Summary, TrainError, agree};

impl<R: Replica, F: Feed<Batch = R::Batch>> Trainer<'_, R, F> {
    /// Compares the replicas, if a comparison is due and no round of local steps is in progress.
    pub(super) fn verify(&mut self) -> Result<(), TrainError> {
        let step = self.state.progress.step;
        match self.state.settings.verify_replicas_every {
            Some(every) if step / every > self.verified / every && self.mirror.is_between_rounds() => {
                self.verified = step;
                self.mirror.settle()?;
                self.same().map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Returns the hash of this rank's parameters, which all of its replicas share.
    fn same(&mut self) -> Result<u64, TrainError> {
        let found = compare::replicas(self.world.replicas(), self.mirror.replica(), self.state.progress.step);
        self.world.settle(found)
    }

    /// Returns whether a checkpoint is due after the next step, or has been since an earlier step. Rank 0 saves it, and only its clock decides.
    pub(super) fn is_save_due(&self) -> bool {
        self.is_save_late || self.state.is_save_due(self.state.progress.step + 1)
    }

    /// Saves a checkpoint on rank 0, if one is due or the step is the best so far. The other ranks are informed only if this save, or an earlier one,
    /// fails. This step is then the last. Called by all ranks.
    pub(super) fn save(&mut self, is_due: bool) -> Result<(), TrainError> {
        self.state.check_save()?;
        if !is_due && !self.state.is_new_best() {
            return Ok(());
        }
        let began = Instant::now();
        // Before the state is copied, so that at most one copy is in memory.
        self.world.all.quiet("saving a checkpoint", |_| self.state.wait_for_save())?;
        self.mirror.settle()?;
        let gathered = self.mirror.moments(self.world.replicas())?;
        let whole = self.whole(gathered)?;
        let is_saved = whole.is_some();
        self.state.save(whole)?;
        if is_saved {
            unisono::trace::record("snapshot", began, Instant::now());
        }
        Ok(())
    }

    /// Compares the replicas after the last step, saves the step, and informs all ranks that it is complete on disk.
    pub(super) fn finish(&mut self, last: EpochReport) -> Result<Summary, TrainError> {
        let own = self.same()?;
        let gathered = match self.state.settings.checkpoints {
            Some(_) => self.mirror.moments(self.world.replicas())?,
            None => Vec::new(),
        };
        let (store, has_parts) = (self.state.take_store(), self.world.has_parts());
        let whole = if store.is_some() || has_parts { self.whole(gathered)? } else { None };
        let hash = match &whole {
            Some(whole) if has_parts => compare::hash_of(&whole.parameters),
            _ => own,
        };
        let hash = compare::broadcast(self.world.all, &format!("{hash:016x}"))?;
        let flushed = self.state.flush_log();
        let saved = self.world.all.quiet("saving a checkpoint", |_| match store.zip(whole) {
            Some((mut store, whole)) => store.save(whole).map(drop).map_err(not_saved),
            None => Ok(()),
        });
        agree(self.world.all, saved.and(flushed))?;
        let memory_bytes = bytes_per_rank(self.world.all)?;
        Ok(self.state.summary(last, hash, memory_bytes))
    }

    /// Returns the state of the run on rank 0, combined from the gathered state of each part. Called by all ranks.
    fn whole(&mut self, gathered: Vec<Tensor>) -> Result<Option<Checkpoint<Progress>>, TrainError> {
        if self.world.replicas().rank() != SAVES {
            return Ok(None);
        }
        let mut copy = snapshot(&mut self.mirror, &self.state.progress, gathered)?;
        if let Some(mut parts) = self.mirror.replica().parts() {
            copy.parameters = parts.gather_parameters(copy.parameters)?;
            copy.optimizer =
                gather(parts.comm, copy.optimizer.into_iter().map(|tensor| (0, tensor)).collect())?;
        }
        Ok(Some(copy).filter(|_| self.world.all.rank() == SAVES))
    }
}
