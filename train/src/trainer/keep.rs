//! The verification of replicas, and the checkpoints of a run.

use std::time::Instant;

use super::Trainer;
use crate::checkpoint::{CheckpointError, Store};
use crate::compare;
use crate::error::TrainError;
use crate::feed::Feed;
use crate::replica::Replica;
use crate::report::{EpochReport, Stopped, Summary};
use crate::resume::{Gathered, snapshot};
use crate::trace::Lane;
use unisono::Error;

/// The rank that saves checkpoints.
const SAVES: usize = 0;

impl<R: Replica, F: Feed<Batch = R::Batch>> Trainer<'_, R, F> {
    /// Compares the replicas, if it is time and ranks are not stepping alone.
    pub(super) fn verify(&mut self) -> Result<(), TrainError> {
        let step = self.progress.step;
        match self.settings.verify_replicas_every {
            Some(every) if step / every > self.verified / every && self.mirror.is_between_rounds() => {
                self.verified = step;
                self.mirror.settle()?;
                compare::replicas(self.comm, self.mirror.replica(), step).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Whether a checkpoint is due after the next step. Rank 0 saves it, and its clock alone decides. While ranks step alone it
    /// waits for the end of their round.
    pub(super) fn is_save_due(&mut self) -> bool {
        let (Some(_), Some(kept)) = (&self.store, &self.settings.checkpoints) else { return false };
        let is_due = self.is_save_late || kept.when.due(self.progress.step + 1, self.saved_at.elapsed());
        let ends_round = self.mirror.rounds().is_none_or(|rounds| rounds.is_last_next());
        self.is_save_late = is_due && !ends_round;
        is_due && ends_round
    }

    /// Saves a checkpoint, if it is due, on rank 0. The other ranks are informed only if this save, or one started earlier, fails;
    /// this step is then the last. All ranks call it.
    pub(super) fn save(&mut self, is_due: bool) -> Result<(), TrainError> {
        if let Some(store) = &mut self.store {
            store.check().map_err(not_saved)?;
        }
        if !is_due {
            return Ok(());
        }
        let began = Instant::now();
        self.mirror.settle()?;
        let gathered = Gathered::of(self.comm, &mut self.mirror)?;
        if let Some(store) = &mut self.store {
            let copy = snapshot(&mut self.mirror, &self.progress, gathered)?;
            store.save_in_background(copy).map_err(not_saved)?;
            self.saved_at = Instant::now();
            if let Some(recorder) = self.mirror.recorder() {
                recorder.span(Lane::Checkpoint, "snapshot", began, self.saved_at);
            }
        }
        Ok(())
    }

    /// Compares the replicas after the last step, saves it, and informs all ranks that it is complete on disk.
    pub(super) fn finish(&mut self, last: EpochReport) -> Result<Summary, TrainError> {
        let hash = compare::replicas(self.comm, self.mirror.replica(), self.progress.step)?;
        let gathered = match self.settings.checkpoints {
            Some(_) => Gathered::of(self.comm, &mut self.mirror)?,
            None => Gathered::default(),
        };
        let saved = match self.store.take() {
            Some(store) => self.save_last(store, gathered),
            None => Ok(()),
        };
        let cause = saved.as_ref().err().map_or(String::new(), ToString::to_string);
        let cause = compare::broadcast(self.comm, cause)?;
        saved?;
        if !cause.is_empty() {
            return Err(Error::Aborted { rank: self.comm.rank(), by: SAVES, cause }.into());
        }
        self.log.finish(self.comm, &mut self.mirror)?;
        let is_saved = self.settings.checkpoints.is_some();
        let stopped = self.is_stopping.then_some(Stopped { step: self.progress.step, is_saved });
        let (ranks, ended_early) = (self.comm.ranks(), self.ended_early());
        Ok(Summary { last, ranks, parameters_hash: format!("{hash:016x}"), stopped, ended_early })
    }

    fn save_last(&mut self, mut store: Store, gathered: Gathered) -> Result<(), TrainError> {
        let last = snapshot(&mut self.mirror, &self.progress, gathered)?;
        store.save(last).map(drop).map_err(not_saved)
    }
}

fn not_saved(error: CheckpointError) -> TrainError {
    TrainError::NotSaved { rank: SAVES, error }
}
