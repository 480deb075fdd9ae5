//! Predictions of a model: the class or the value of a sample, or the continuation of a text.

use std::fmt;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_nn::Module;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Description;
use super::input::{described, listed, tokens};
use crate::config::figure;
use crate::model::{self, Sequence};
use unisono::Communicator;
use unisono_data::{Batch, DataError, Kind, Pass, Pipeline, Split, Threads};
use unisono_train::internals::EVALUATION_BATCH;
use unisono_train::{ReplicaError, TrainError, agree};

/// The number of batches that a rank predicts between two gathers.
const ROUND: usize = 4;
/// The number of values sent per sample: the class and its probability, or the value and 1, and the target. All are exact as `f64`.
const ROW: usize = 3;
/// The probability in a row without a sample.
const NONE: f64 = -1.0;

/// A model for prediction. See [`Saved::predictor`](super::Saved::predictor).
pub struct Predictor {
    pub(super) network: Sequence,
    pub(super) description: Description,
}

impl fmt::Debug for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Predictor").field("description", &self.description).finish_non_exhaustive()
    }
}

/// A prediction for a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Guess {
    /// A classification.
    Class {
        /// The most probable class.
        class: u32,
        /// Its probability, 0 to 1.
        probability: f64,
    },
    /// The number that a regression predicts, in the units of the target's column.
    Value(f32),
}

impl Guess {
    fn row(self, target: u32) -> [f64; ROW] {
        let (answer, probability) = match self {
            Self::Class { class, probability } => (f64::from(class), probability),
            Self::Value(value) => (f64::from(value), 1.0),
        };
        [answer, probability, f64::from(target)]
    }
}

/// The settings of sampling characters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// The divisor of logits before the softmax. 1 samples from the model's distribution, a lower value sharpens it, and 0 always selects the most
    /// probable character.
    pub temperature: f64,
    /// The random seed.
    pub seed: u64,
}

impl Predictor {
    /// Predicts each sample of a batch. Samples are images or rows as in training.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the model is for text. [`TrainError::Replica`] if the samples are of another size.
    pub fn predict(&self, batch: &Batch) -> Result<Vec<Guess>, TrainError> {
        if let Kind::Text { .. } = self.description.kind {
            return Err(self.does_not("it continues a prompt, and predicts nothing of images or rows"));
        }
        let inputs = model::inputs(batch).map_err(ReplicaError::from)?;
        let guess = |outputs: &Vec<f32>| match self.description.target() {
            Some(target) => Guess::Value(target.original(outputs[0]) as f32),
            None => {
                let sum: f64 = weights(outputs, 1.0).sum();
                Guess::Class { class: highest(outputs) as u32, probability: sum.recip() }
            }
        };
        Ok(self.logits(&inputs)?.iter().map(guess).collect())
    }

    /// Predicts the first `count` samples of a split, divided among ranks. The batches are the same as in an evaluation on any number of ranks, so
    /// the predictions are identical to the last bit. Called by all ranks.
    ///
    /// On rank 0, `each` is called with the prediction and the target of every sample, in order. It is not called on other ranks.
    ///
    /// # Errors
    /// [`TrainError`] of the first batch that cannot be read or predicted, on the rank that has it, and [`TrainError::Elsewhere`] on the others.
    /// `each` has then received every sample before it. Errors of the collectives.
    ///
    /// # Panics
    /// If the split has fewer samples.
    pub fn predict_shared(
        &self,
        comm: &mut Communicator,
        split: Arc<dyn Split>,
        count: usize,
        mut each: impl FnMut(Guess, u32),
    ) -> Result<(), TrainError> {
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
            // The pipeline would number the sample among this rank's.
            Ok(split.batch(&samples, Pass::Evaluation))
        });
        for _ in 0..rounds {
            let mut rows = vec![NONE; ranks * ROUND * EVALUATION_BATCH * ROW];
            let own = comm.own_part(rows.len());
            let predicted = self.round(&mut made, &mut rows[own]);
            comm.gather(&mut rows, 0)?;
            if rank == 0 {
                self.report(&rows, &mut each);
            }
            agree(comm, predicted)?;
        }
        Ok(())
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
            let guesses = self.predict(&batch)?.into_iter().zip(&batch.targets);
            for (row, (guess, &target)) in rows.chunks_exact_mut(ROW).zip(guesses) {
                row.copy_from_slice(&guess.row(target));
            }
        }
        Ok(())
    }

    /// Calls `each` with the samples of a round, up to a batch that failed.
    fn report(&self, rows: &[f64], each: &mut impl FnMut(Guess, u32)) {
        let batches = rows.chunks_exact(EVALUATION_BATCH * ROW).take_while(|batch| batch[1] != NONE);
        let samples = batches.flat_map(|batch| batch.chunks_exact(ROW).take_while(|row| row[1] != NONE));
        for row in samples {
            let guess = match self.description.target() {
                Some(_) => Guess::Value(row[0] as f32),
                None => Guess::Class { class: row[0] as u32, probability: row[1] },
            };
            each(guess, row[2] as u32);
        }
    }

    /// Continues a text by `length` characters, each sampled given those before it.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the model is not for text, the prompt is empty or has a character outside the model's vocabulary, or the
    /// temperature is negative or NaN.
    pub fn continued(&self, prompt: &str, length: usize, sampling: Sampling) -> Result<String, TrainError> {
        let Kind::Text { context, vocabulary } = &self.description.kind else {
            return Err(
                self.does_not("it predicts something of samples, and continues no prompt: use --data")
            );
        };
        let refuse = |why: String| Err(TrainError::Setting(why));
        if !(sampling.temperature >= 0.0 && sampling.temperature.is_finite()) {
            return refuse(format!(
                "the temperature is {}: it must be a number from 0",
                figure(sampling.temperature)
            ));
        }
        let mut text = match tokens(prompt.chars(), vocabulary) {
            Ok(tokens) if tokens.is_empty() => {
                return refuse(
                    "the prompt is empty: expected at least one character to go on from".to_owned(),
                );
            }
            Ok(tokens) => tokens,
            Err(unknown) => {
                let (unknown, count, known) = (listed(&unknown), vocabulary.len(), listed(vocabulary));
                return refuse(format!(
                    "in the prompt, {unknown} is none of the {count} characters that the model knows: {known}"
                ));
            }
        };
        let given = text.len();
        let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        for _ in 0..length {
            // The model has no positions beyond its context.
            let seen = &text[text.len().saturating_sub(*context)..];
            let inputs =
                Tensor::from_slice(seen, (1, seen.len()), &Device::Cpu).map_err(ReplicaError::from)?;
            let logits = self.logits(&inputs)?.pop().expect("there is a row for each character");
            text.push(draw(&logits, sampling.temperature, &mut rng));
        }
        Ok(text[given..].iter().map(|&token| vocabulary[token as usize]).collect())
    }

    fn logits(&self, inputs: &Tensor) -> Result<Vec<Vec<f32>>, TrainError> {
        let rows = Module::forward(&self.network, inputs).and_then(|logits| logits.to_vec2());
        Ok(rows.map_err(ReplicaError::from)?)
    }

    fn does_not(&self, why: &str) -> TrainError {
        let Description { model, kind, .. } = &self.description;
        TrainError::Setting(format!("the model is the {model} of {}: {why}", described(kind)))
    }
}

/// Returns the index of the highest value, or of the first one if there are several.
fn highest(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best })
}

/// Returns the softmax weight of each value, relative to 1 for the highest.
fn weights(logits: &[f32], temperature: f64) -> impl Iterator<Item = f64> + Clone {
    let most = f64::from(logits[highest(logits)]);
    logits.iter().map(move |&logit| ((f64::from(logit) - most) / temperature).exp())
}

fn draw(logits: &[f32], temperature: f64, rng: &mut ChaCha8Rng) -> u32 {
    let best = highest(logits) as u32;
    if temperature == 0.0 {
        return best;
    }
    let weights = weights(logits, temperature);
    let mut left = rng.random::<f64>() * weights.clone().sum::<f64>();
    for (token, weight) in (0..).zip(weights) {
        left -= weight;
        if left < 0.0 {
            return token;
        }
    }
    // Rounding has left a small remainder.
    best
}
