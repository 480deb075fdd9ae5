//! What a run keeps: replicas that are the same, and checkpoints of them.

use std::time::Instant;

use super::Trainer;
use crate::checkpoint::{CheckpointError, Store};
use crate::compare;
use crate::error::TrainError;
use crate::feed::Feed;
use crate::replica::Replica;
use crate::report::{EpochReport, Stopped, Summary};
use crate::resume::snapshot;
use crate::trace::Lane;
use unisono::Error;

/// The rank that saves.
const SAVES: usize = 0;

impl<R: Replica, F: Feed<Batch = R::Batch>> Trainer<'_, R, F> {
    /// Holds the replicas against each other, every so many steps.
    pub(super) fn verify(&mut self) -> Result<(), TrainError> {
        match self.settings.verify_replicas_every {
            Some(every) if self.progress.step.is_multiple_of(every) => {
                compare::replicas(self.comm, self.mirror.replica(), self.progress.step).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Has rank 0 save, if it is time: only its clock counts. The others need not know, unless it fails, or what it began to
    /// save before has failed: this step is then the last.
    pub(super) fn save_if_due(&mut self) -> Result<(), TrainError> {
        let (Some(store), Some(kept)) = (&mut self.store, &self.settings.checkpoints) else { return Ok(()) };
        store.check().map_err(not_saved)?;
        if kept.when.due(self.progress.step, self.saved_at.elapsed()) {
            let began = Instant::now();
            let copy = snapshot(&mut self.mirror, &self.progress)?;
            store.save_in_background(copy).map_err(not_saved)?;
            self.saved_at = Instant::now();
            if let Some(recorder) = self.mirror.recorder() {
                recorder.span(Lane::Checkpoint, "snapshot", began, self.saved_at);
            }
        }
        Ok(())
    }

    /// Holds all ranks to the last step, saves it, and lets all of them know that it is whole on the disk.
    pub(super) fn finish(&mut self, last: EpochReport) -> Result<Summary, TrainError> {
        let hash = compare::replicas(self.comm, self.mirror.replica(), self.progress.step)?;
        let saved = match self.store.take() {
            Some(store) => self.save_last(store),
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
        Ok(Summary { last, ranks: self.comm.ranks(), parameters_hash: format!("{hash:016x}"), stopped })
    }

    fn save_last(&mut self, mut store: Store) -> Result<(), TrainError> {
        let last = snapshot(&mut self.mirror, &self.progress)?;
        store.save(last).map(drop).map_err(not_saved)
    }
}

fn not_saved(error: CheckpointError) -> TrainError {
    TrainError::NotSaved { rank: SAVES, error }
}
