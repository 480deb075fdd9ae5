//! Predictions that ranks share.

use std::sync::Arc;

use super::predictor::{Guess, Predictor};
use unisono::Communicator;
use unisono_data::{Batch, DataError, Pass, Pipeline, Split, Threads};
use unisono_train::internals::EVALUATION_BATCH;
use unisono_train::{TrainError, agree};

/// The batches that a rank predicts between two gathers.
const ROUND: usize = 4;
/// A sample's class and its probability, or its value and 1, and its target, as they travel: all are exact as `f64`.
const ROW: usize = 3;
/// The probability in the row of no sample.
const NONE: f64 = -1.0;

impl Guess {
    fn row(self, target: u32) -> [f64; ROW] {
        let (answer, probability) = match self {
            Self::Class { class, probability } => (f64::from(class), probability),
            Self::Value(value) => (f64::from(value), 1.0),
        };
        [answer, probability, f64::from(target)]
    }
}

impl Predictor {
    /// Predicts the first `count` samples of a split, each rank its share of them. The batches are those of an evaluation on any
    /// number of ranks, so the predictions are the same to the last bit. Called by all ranks.
    ///
    /// On rank 0, `each` gets the prediction and the target of every sample, in order, and returns whether to go on; other ranks do not
    /// call it. Returns whether it always did, on all ranks.
    ///
    /// # Errors
    /// [`TrainError`] of the first batch that cannot be read or predicted, on the rank that has it, and
    /// [`TrainError::Elsewhere`] on the others; `each` has then had every sample before it. Errors of the collectives.
    ///
    /// # Panics
    /// If the split has fewer samples.
    pub fn predict_shared(
        &self,
        comm: &mut Communicator,
        split: Arc<dyn Split>,
        count: usize,
        mut each: impl FnMut(Guess, u32) -> bool,
    ) -> Result<bool, TrainError> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let batches = count.div_ceil(EVALUATION_BATCH);
        let rounds = batches.div_ceil(ROUND * ranks);
        let own = (0..rounds).flat_map(move |round| {
            let first = (round * ranks + rank) * ROUND;
            first.min(batches)..(first + ROUND).min(batches)
        });
        let mut made = Pipeline::of(own).map(Threads::Auto, move |number| {
            let first = number * EVALUATION_BATCH;
            let samples: Vec<_> = (first..count.min(first + EVALUATION_BATCH)).collect();
            // The pipeline would number it among this rank's.
            Ok(split.batch(&samples, Pass::Evaluation))
        });
        for _ in 0..rounds {
            let mut rows = vec![NONE; ranks * ROUND * EVALUATION_BATCH * ROW];
            let own = comm.own_part(rows.len());
            let predicted = self.round(&mut made, &mut rows[own]);
            comm.gather(&mut rows, 0)?;
            let goes_on = rank != 0 || self.tell(&rows, &mut each);
            // Rank 0 may have to stop, and the others with it.
            let mut told = [u8::from(goes_on)];
            comm.broadcast(&mut told, 0)?;
            agree(comm, predicted)?;
            if told == [0] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Predicts batches until the rows are full or the batches end.
    fn round(
        &self,
        batches: &mut impl Iterator<Item = Result<Result<Batch, DataError>, DataError>>,
        rows: &mut [f64],
    ) -> Result<(), TrainError> {
        for rows in rows.chunks_exact_mut(EVALUATION_BATCH * ROW) {
            let Some(batch) = batches.next() else { break };
            let batch = batch??;
            let guesses = self.predict(&batch)?;
            for (row, (guess, &target)) in rows.chunks_exact_mut(ROW).zip(guesses.iter().zip(&batch.targets))
            {
                row.copy_from_slice(&guess.row(target));
            }
        }
        Ok(())
    }

    /// Hands on the samples of a round, up to a batch that failed. Returns whether to go on.
    fn tell(&self, rows: &[f64], each: &mut impl FnMut(Guess, u32) -> bool) -> bool {
        let batches = rows.chunks_exact(EVALUATION_BATCH * ROW).take_while(|batch| batch[1] != NONE);
        let mut samples = batches.flat_map(|batch| batch.chunks_exact(ROW).take_while(|row| row[1] != NONE));
        samples.all(|row| {
            let guess = match self.target {
                Some(_) => Guess::Value(row[0] as f32),
                None => Guess::Class { class: row[0] as u32, probability: row[1] },
            };
            each(guess, row[2] as u32)
        })
    }
}
