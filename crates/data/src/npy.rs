//! Data sets of NumPy arrays: images or rows of numbers, which stay in their files, and their labels.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::augment::Augmentation;
use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::normalization::{Normalize, Sums};
use crate::schema::Schema;
use crate::source::Options;
use crate::split::nine_to_one;
use crate::stored::{Content, Images, Labels, StoredSamples};
use crate::survey;

mod array;

use self::array::Array;

/// The file names of training samples and their labels, in order of preference.
const TRAIN: [[&str; 2]; 2] = [["x_train.npy", "y_train.npy"], ["images.npy", "labels.npy"]];
const TEST: [&str; 2] = ["x_test.npy", "y_test.npy"];

/// Finds the arrays in `directory`: `x_train.npy` with `y_train.npy`, or else `images.npy` with `labels.npy`. `x_test.npy` with `y_test.npy` are held
/// out. Without them, every tenth sample is.
///
/// Rows are standardised by the mean and the standard deviation of the training rows, or by those of `known`, a model's schema
/// and its number of classes.
pub(super) fn read(
    directory: &Path,
    options: &Options,
    known: Option<(&Schema, usize)>,
) -> Result<Dataset, DataError> {
    let names = TRAIN.into_iter().find(|[samples, _]| directory.join(samples).exists()).unwrap_or(TRAIN[0]);
    let train = Pair::read(directory, names)?;
    let has_test = TEST.iter().any(|name| directory.join(name).exists());
    let test = has_test.then(|| Pair::read(directory, TEST)).transpose()?;
    let (training, held_out) = match &test {
        Some(test) => (train.all(), test.all()),
        None => nine_to_one(train.count),
    };
    if held_out.is_empty() {
        let (path, found) = (train.path, train.count);
        return Err(DataError::too_short(&path, "samples", found, 10));
    }
    let pairs = || [Some(&train), test.as_ref()].into_iter().flatten();
    pairs().try_for_each(|pair| pair.check_shape(&train))?;
    let classes = match known.map(|(_, classes)| classes).or(options.classes) {
        Some(classes) => pairs().try_for_each(|pair| pair.check_labels(classes)).map(|()| classes)?,
        None => pairs().map(Pair::highest).max().unwrap_or_default() as usize + 1,
    };
    let (kind, schema) = match &train.samples {
        Content::Images(Images { shape: [height, width, channels], .. }) => {
            let (height, width, channels) = (*height, *width, *channels);
            let measured = || train.sums(&training);
            let normalization = Normalize::resolved(options.normalize.as_ref(), channels, measured)?;
            let schema = Schema { normalization, ..Schema::default() };
            (Kind::Images { height, width, channels, classes }, schema)
        }
        Content::Rows(rows, _) => {
            let features = rows.width;
            let schema = match known {
                Some((schema, _)) if schema.columns.len() == features => schema.clone(),
                Some((schema, _)) => {
                    let expected = schema.columns.len();
                    let problem = format!("has {features} columns: expected {expected}, as in training");
                    return Err(DataError::file(train.path, problem));
                }
                None => {
                    // Columns are named by their numbers.
                    let names: Vec<_> = (0..features).map(|column| column.to_string()).collect();
                    Schema { columns: rows.statistics(&names, &training)?, ..Schema::default() }
                }
            };
            (Kind::Table { features, classes }, schema)
        }
    };
    let test = test.as_ref().unwrap_or(&train).split(held_out, &schema, Augmentation::default());
    Ok(Dataset { train: train.split(training, &schema, options.augmentation.clone()), test, kind, schema })
}

struct Pair {
    /// The file of samples.
    path: PathBuf,
    samples: Content,
    count: usize,
    path_of_labels: PathBuf,
    labels: Arc<Labels>,
}

impl Pair {
    fn read(directory: &Path, [samples, labels]: [&str; 2]) -> Result<Self, DataError> {
        let [path, path_of_labels] = [samples, labels].map(|name| directory.join(name));
        if let Some(missing) = [&path, &path_of_labels].into_iter().find(|path| !path.exists()) {
            let missing = missing.file_name().unwrap_or_default().display();
            let others = TRAIN.map(|[samples, labels]| format!("`{samples}` with `{labels}`")).join(" or ");
            let problem = format!(
                "contains no `{missing}`: expected {others}, and where a part is held out `x_test.npy` with `y_test.npy`"
            );
            return Err(DataError::file(directory, problem));
        }
        let array = Array::open(path.clone())?;
        let labels = Array::open(path_of_labels.clone())?.labels()?;
        let (found, expected) = (labels.len(), array.shape[0]);
        if found != expected {
            return Err(DataError::labels(&path_of_labels, found, &path, expected));
        }
        let labels = Arc::new(Labels::new(labels));
        Ok(Self { path, samples: array.samples()?, count: found, path_of_labels, labels })
    }

    fn all(&self) -> Vec<usize> {
        (0..self.count).collect()
    }

    fn highest(&self) -> u32 {
        (0..self.count).map(|sample| self.labels.get(sample)).max().unwrap_or_default()
    }

    /// Returns an error for labels that are not below `classes`.
    fn check_labels(&self, classes: usize) -> Result<(), DataError> {
        match (0..self.count).find(|&sample| self.labels.get(sample) as usize >= classes) {
            None => Ok(()),
            Some(record) => {
                let (label, highest) = (self.labels.get(record), classes.saturating_sub(1));
                let problem = format!("is the label {label}: expected one from 0 to {highest}");
                Err(DataError::record(&self.path_of_labels, record, problem))
            }
        }
    }

    fn check_shape(&self, expected: &Self) -> Result<(), DataError> {
        let shape = |samples: &Content| match samples {
            Content::Images(images) => format!("images of the shape {:?}", images.shape),
            Content::Rows(rows, _) => format!("rows of {} numbers", rows.width),
        };
        let (found, expected) = (shape(&self.samples), shape(&expected.samples));
        if found == expected {
            return Ok(());
        }
        let problem = format!("has {found}: expected {expected}, as in training");
        Err(DataError::file(self.path.clone(), problem))
    }

    fn sums(&self, training: &[usize]) -> Result<Sums, DataError> {
        let Content::Images(images) = &self.samples else { return Ok(Sums::default()) };
        let channels = images.shape[2];
        survey::sums(training, |image| Ok(Sums::of(&images.read(image)?, channels)))
    }

    fn split(&self, samples: Vec<usize>, schema: &Schema, augmentation: Augmentation) -> Arc<StoredSamples> {
        let content = match &self.samples {
            Content::Images(images) => {
                let normalization = schema.normalization.clone();
                Content::Images(Images { augmentation, normalization, ..images.clone() })
            }
            Content::Rows(rows, _) => Content::Rows(Arc::clone(rows), schema.columns.as_slice().into()),
        };
        StoredSamples::new(content, &self.labels, samples)
    }
}

#[cfg(test)]
mod tests;
