//! What a run is told, and what suits a model where it is told nothing.

use super::error::TrainError;
use super::model::{self, ModelKind};
use super::optimizer::OptimizerKind;
use super::replica::Replica;
use crate::data::{self, Dataset, Source};

/// Everything that decides a run, but for the number of ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where the data is.
    pub source: Source,
    /// What is trained on it.
    pub model: ModelKind,
    /// How often the training samples are gone through.
    pub epochs: usize,
    /// How many samples each rank takes in a step.
    pub batch_size: usize,
    /// How parameters are updated.
    pub optimizer: OptimizerKind,
    /// The learning rate after warm-up, for a global batch of `reference_batch`; see
    /// [`Settings::scaled_rate`].
    pub learning_rate: f64,
    /// The global batch that the learning rate is for.
    pub reference_batch: usize,
    /// How strongly weights are drawn to zero.
    pub weight_decay: f64,
    /// The share of all steps in which the learning rate rises.
    pub warm_up: f64,
    /// Where all randomness comes from.
    pub seed: u64,
    /// How many characters a sample of a text has.
    pub context: usize,
}

impl Settings {
    /// What was found to suit this model, on two ranks.
    pub fn new(source: Source, model: ModelKind) -> Self {
        let for_mlp = Self {
            source,
            model,
            epochs: 10,
            batch_size: 64,
            optimizer: OptimizerKind::Sgd,
            learning_rate: 0.1,
            reference_batch: 128,
            weight_decay: 5e-4,
            warm_up: 0.05,
            seed: 0,
            context: data::Options::default().context,
        };
        match model {
            ModelKind::Mlp => for_mlp,
            ModelKind::Cnn => Self {
                epochs: 8,
                batch_size: 32,
                learning_rate: 0.05,
                reference_batch: 64,
                warm_up: 0.1,
                ..for_mlp
            },
            ModelKind::Transformer => Self {
                epochs: 2,
                batch_size: 8,
                optimizer: OptimizerKind::AdamW,
                learning_rate: 3e-3,
                reference_batch: 16,
                weight_decay: 0.1,
                ..for_mlp
            },
        }
    }

    /// The model that learns from this source where none is named.
    pub fn default_model(source: &Source) -> ModelKind {
        match source {
            Source::Digits | Source::Idx(_) => ModelKind::Mlp,
            Source::Text(_) => ModelKind::Transformer,
        }
    }

    /// How many samples all ranks take together in a step.
    pub fn global_batch(&self, ranks: usize) -> usize {
        self.batch_size * ranks
    }

    /// The learning rate for this number of ranks.
    ///
    /// A larger batch has a less noisy gradient and bears a larger step: for SGD in proportion (Goyal et
    /// al., "Accurate, large minibatch SGD", 2017, section 2.1), for AdamW with the square root (Malladi et
    /// al., "On the SDEs and scaling rules for adaptive gradient algorithms", 2022, section 4). The same
    /// global batch has the same rate at any number of ranks.
    pub fn scaled_rate(&self, ranks: usize) -> f64 {
        let factor = self.global_batch(ranks) as f64 / self.reference_batch as f64;
        match self.optimizer {
            OptimizerKind::Sgd => self.learning_rate * factor,
            OptimizerKind::AdamW => self.learning_rate * factor.sqrt(),
        }
    }

    /// Loads the data and builds the model, if they fit each other and these settings.
    pub(super) fn prepare(&self, ranks: usize) -> Result<(Dataset, Replica), TrainError> {
        self.check()?;
        let options = data::Options { seed: self.seed, context: self.context, ..data::Options::default() };
        let dataset = data::load(&self.source, &options)?;
        let (samples, global_batch) = (dataset.train.len(), self.global_batch(ranks));
        if global_batch > samples {
            return Err(TrainError::Setting(format!(
                "a batch of {} on each of {ranks} ranks is {global_batch} samples, but {} has only {samples} to train on: \
                 choose a smaller batch",
                self.batch_size, self.source
            )));
        }
        let (model, parameters) = model::build(self.model, &dataset.kind, self.seed)?;
        let replica = Replica::new(model, parameters)?;
        Ok((dataset, replica))
    }

    fn check(&self) -> Result<(), TrainError> {
        let positive = |name: &str, value: usize| match value {
            0 => Err(TrainError::Setting(format!("{name} is 0: it must be at least 1"))),
            _ => Ok(()),
        };
        positive("the number of epochs", self.epochs)?;
        positive("the batch size", self.batch_size)?;
        positive("the reference batch", self.reference_batch)?;
        let in_range = |name: &str, value: f64, range: std::ops::RangeInclusive<f64>| {
            if range.contains(&value) {
                Ok(())
            } else {
                let (least, most) = range.into_inner();
                Err(TrainError::Setting(format!("the {name} is {value}: it must be from {least} to {most}")))
            }
        };
        in_range("learning rate", self.learning_rate, f64::MIN_POSITIVE..=1e6)?;
        in_range("weight decay", self.weight_decay, 0.0..=1e6)?;
        in_range("share of warm-up", self.warm_up, 0.0..=1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_global_batch_and_not_the_ranks() {
        let settings = Settings::new(Source::Digits, ModelKind::Mlp);
        let with_batch = |batch_size| Settings { batch_size, ..settings.clone() };
        assert_eq!(settings.scaled_rate(4), 2.0 * settings.scaled_rate(2));
        assert_eq!(with_batch(96).scaled_rate(1), with_batch(24).scaled_rate(4));
        let settings = Settings { optimizer: OptimizerKind::AdamW, ..settings };
        assert_eq!(settings.scaled_rate(8), 2.0 * settings.scaled_rate(2));
    }

    #[test]
    fn senseless_settings_are_refused() {
        let settings = Settings::new(Source::Digits, ModelKind::Mlp);
        let refused = |settings: Settings| settings.check().unwrap_err().to_string();
        assert!(refused(Settings { epochs: 0, ..settings.clone() }).contains("epochs is 0"));
        assert!(refused(Settings { batch_size: 0, ..settings.clone() }).contains("batch size is 0"));
        assert!(refused(Settings { learning_rate: f64::NAN, ..settings.clone() }).contains("NaN"));
        assert!(refused(Settings { warm_up: 1.5, ..settings }).contains("from 0 to 1"));
    }
}
