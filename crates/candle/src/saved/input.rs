//! Input data for a saved model.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Part, Saved};
use unisono_data::{
    Dataset, EncodedImages, Kind, Normalization, Normalize, OnBadSample, Options, Source, Split,
};
use unisono_train::TrainError;

impl Saved {
    /// Returns a data set to evaluate or predict, by default the one that the model was trained on.
    ///
    /// A text is encoded with the model's vocabulary, and classes are matched by name. The columns of a table are found by name, in any order, and
    /// standardised with the statistics of the training rows. A single row is therefore enough. The column of labels may be missing, unless the model
    /// is evaluated.
    ///
    /// Older checkpoints have no names. In this case a table is standardised by its own rows, and its classes are numbered in their own order. The
    /// number of classes must then equal the model's.
    ///
    /// # Errors
    /// [`TrainError::Data`] if it cannot be loaded. [`TrainError::Setting`], with the actual and the expected data, if the model does not support it.
    pub fn dataset(&self, source: Option<&Source>) -> Result<Dataset, TrainError> {
        self.load(source, OnBadSample::Error)
    }

    /// As [`dataset`](Self::dataset), with this treatment of damaged samples.
    pub(super) fn load(
        &self,
        source: Option<&Source>,
        on_bad_sample: OnBadSample,
    ) -> Result<Dataset, TrainError> {
        let source = source.unwrap_or(&self.description.source);
        if let Source::Service(_) = source {
            return Err(TrainError::Setting(format!(
                "{source} makes batches for training: a saved model is evaluated, or predicts, on data that this machine reads: name them with --data"
            )));
        }
        let (seed, cache) = (self.description.seed, self.cache.clone());
        let usual = Options { seed, cache, on_bad_sample, ..Options::default() };
        let options = match self.description.kind {
            // Labels are numbered in the record files. A label beyond the model's classes is reported when its record is read.
            Kind::Images { classes, channels, height, width } => {
                let normalization = self.normalization();
                Options {
                    classes: Some(classes),
                    colour: Some(channels > 1),
                    image_size: Some([height, width]),
                    normalize: normalization.map(Normalize::By),
                    ..usual
                }
            }
            Kind::Table { .. } => usual,
            Kind::Text { context, .. } => Options { context, ..usual },
        };
        let loaded = match &self.description.schema {
            Some(schema) => unisono_data::load_as(source, &options, &self.description.kind, schema),
            None => unisono_data::load(source, &options),
        };
        self.fit(source, loaded?)
    }

    /// Returns the data set if this part of it has labels and is not empty.
    pub(super) fn measurable(
        &self,
        dataset: Dataset,
        source: Option<&Source>,
        part: Part,
    ) -> Result<Dataset, TrainError> {
        let source = source.unwrap_or(&self.description.source);
        let label = self.description.schema.as_ref().and_then(|schema| schema.label.as_deref());
        match label.filter(|_| dataset.schema.label.is_none()) {
            Some(label) => Err(TrainError::Setting(format!(
                "{source} has no column `{label}`, which says the class: without it, the model can be asked (predict) and not \
                 measured"
            ))),
            None if part.of(&dataset).is_empty() => {
                let others = dataset.train.len();
                Err(TrainError::Setting(format!(
                    "no sample of {source} is held out, for there are only {others}: expected at least 10, or --split train"
                )))
            }
            None => Ok(dataset),
        }
    }

    /// Checks that a data set fits the model, and encodes it in the model's tokens.
    fn fit(&self, source: &Source, dataset: Dataset) -> Result<Dataset, TrainError> {
        // Without a schema, labels that are names are numbered by the names in the data.
        let is_numbered_anew = self.description.schema.is_none() && source.names_classes();
        let has_classes = |found: usize, known: usize| found == known || (!is_numbered_anew && found < known);
        let mut known = self.description.kind.clone();
        match (&dataset.kind, &mut known) {
            (Kind::Text { context, vocabulary: found }, Kind::Text { vocabulary: known, .. }) => {
                let known: &[char] = known;
                let tokens = tokens(found.iter().copied(), known).map_err(|unknown| {
                    TrainError::Setting(format!(
                        "{source} has {} distinct characters, and {} is none of the {} that the model knows: {}",
                        found.len(),
                        listed(&unknown),
                        known.len(),
                        listed(known)
                    ))
                })?;
                let kind = Kind::Text { context: *context, vocabulary: known.to_vec() };
                let (train, test) = (dataset.train.renumbered(&tokens), dataset.test.renumbered(&tokens));
                return Ok(Dataset { kind, train, test, schema: dataset.schema });
            }
            (Kind::Images { classes: found, .. }, Kind::Images { classes: known, .. })
            | (Kind::Table { classes: found, .. }, Kind::Table { classes: known, .. })
                if has_classes(*found, *known) =>
            {
                *known = *found;
            }
            _ => {}
        }
        if dataset.kind == known {
            return Ok(dataset);
        }
        let (found, known) = (described(&dataset.kind), described(&self.description.kind));
        Err(TrainError::Setting(format!(
            "{source} has {found}, and the model in `{}` was trained on {known}: expected data like these",
            self.path.display()
        )))
    }

    /// Returns the images in files as input of the model: grey or in colour and normalised as in training, and resized and cropped if they have
    /// another size. Their targets are meaningless.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the model is not for images. The files are read later, batch by batch.
    pub fn images(&self, files: &[PathBuf]) -> Result<Arc<dyn Split>, TrainError> {
        let Kind::Images { height, width, channels, .. } = self.description.kind else {
            let known = described(&self.description.kind);
            let why = format!("the model in `{}` was trained on {known}, not on images", self.path.display());
            return Err(TrainError::Setting(why));
        };
        let shape = [height, width, channels];
        Ok(Arc::new(EncodedImages::of_files(files, shape, self.normalization())))
    }

    /// Returns the statistics that normalised the training images, unless they are MNIST's.
    fn normalization(&self) -> Option<Normalization> {
        self.description.schema.as_ref()?.normalization.clone()
    }
}

/// Returns the token of each character, or the distinct characters that have none.
pub(super) fn tokens(text: impl Iterator<Item = char>, vocabulary: &[char]) -> Result<Vec<u32>, Vec<char>> {
    let (mut tokens, mut unknown) = (Vec::new(), Vec::new());
    for character in text {
        match vocabulary.binary_search(&character) {
            Ok(token) => tokens.push(token as u32),
            Err(_) if unknown.contains(&character) => {}
            Err(_) => unknown.push(character),
        }
    }
    if unknown.is_empty() { Ok(tokens) } else { Err(unknown) }
}

/// Lists characters in a message, abbreviated to a readable number.
pub(super) fn listed(characters: &[char]) -> String {
    const MOST: usize = 100;
    let shown: String = characters.iter().take(MOST).collect();
    let more = if characters.len() > MOST { " and more" } else { "" };
    format!("{shown:?}{more}")
}

/// Describes a kind of sample.
pub(super) fn described(kind: &Kind) -> String {
    match kind {
        Kind::Images { height, width, channels, classes } => {
            let colour = if *channels == 1 { "" } else { "colour " };
            format!("{colour}images of {height}x{width} pixels in {classes} classes")
        }
        Kind::Table { features, classes: 1 } => format!("rows of {features} numbers and a target"),
        Kind::Table { features, classes } => format!("rows of {features} numbers in {classes} classes"),
        Kind::Text { vocabulary, .. } => format!("text of {} distinct characters", vocabulary.len()),
    }
}
