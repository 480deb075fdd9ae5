//! Predictions of a model: the class or the number of a sample, or the continuation of a text.

use std::fmt;

use candle_core::{Device, Tensor};
use candle_nn::Module;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::input::{Characters, Described, tokens};
use crate::config::Figure;
use crate::model::{self, ModelKind, Sequence};
use unisono_data::{Batch, Column, Kind};
use unisono_train::{ReplicaError, TrainError};

/// A model for prediction; see [`Saved::predictor`](super::Saved::predictor).
pub struct Predictor {
    pub(super) network: Sequence,
    pub(super) model: ModelKind,
    pub(super) kind: Kind,
    /// The column that a regression predicts; `None` for classes.
    pub(super) target: Option<Column>,
}

impl fmt::Debug for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Predictor")
            .field("model", &self.model)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
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

/// The settings of sampling characters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// The divisor of logits before the softmax: 1 samples from the model's distribution, less sharpens
    /// it, and 0 always takes the most probable character.
    pub temperature: f64,
    /// The random seed.
    pub seed: u64,
}

impl Predictor {
    /// Predicts each sample of a batch: images or rows like those that the model was trained on.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the model is for text; [`TrainError::Replica`] if the samples are of another size.
    pub fn predict(&self, batch: &Batch) -> Result<Vec<Guess>, TrainError> {
        if let Kind::Text { .. } = self.kind {
            return Err(self.does_not("it continues a prompt, and predicts nothing of images or rows"));
        }
        let inputs = model::inputs(batch).map_err(ReplicaError::from)?;
        Ok(self.logits(&inputs)?.iter().map(|outputs| self.guess(outputs)).collect())
    }

    fn guess(&self, outputs: &[f32]) -> Guess {
        match &self.target {
            Some(target) => Guess::Value(target.original(outputs[0]) as f32),
            None => {
                let sum: f64 = weights(outputs, 1.0).sum();
                Guess::Class { class: highest(outputs) as u32, probability: sum.recip() }
            }
        }
    }

    /// Continues a text by `length` characters, each sampled given those before it.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the model is not for text, the prompt is empty or has a character that the model does not
    /// know, or the temperature is negative or NaN.
    pub fn continued(&self, prompt: &str, length: usize, sampling: Sampling) -> Result<String, TrainError> {
        let Kind::Text { context, vocabulary } = &self.kind else {
            return Err(self.does_not("it predicts something of samples, and continues no prompt"));
        };
        let refuse = |why: String| Err(TrainError::Setting(why));
        if !(sampling.temperature >= 0.0 && sampling.temperature.is_finite()) {
            return refuse(format!(
                "the temperature is {}: it must be a number from 0",
                Figure(sampling.temperature)
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
                let (unknown, count, known) =
                    (Characters(&unknown), vocabulary.len(), Characters(vocabulary));
                return refuse(format!(
                    "in the prompt, {unknown} is none of the {count} characters that the model knows: {known}"
                ));
            }
        };
        let given = text.len();
        let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        for _ in 0..length {
            // The model knows no positions beyond its context.
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
        TrainError::Setting(format!("the model is the {} of {}: {why}", self.model, Described(&self.kind)))
    }
}

/// Returns the index of the highest value; the first of several.
fn highest(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best })
}

/// Returns the softmax weight of each value, relative to 1 for the highest.
fn weights(logits: &[f32], temperature: f64) -> impl Iterator<Item = f64> + Clone {
    let most = f64::from(logits[highest(logits)]);
    logits.iter().map(move |&logit| ((f64::from(logit) - most) / temperature).exp())
}

/// Samples a token by its probability.
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
    // Rounding has left a little over.
    best
}
