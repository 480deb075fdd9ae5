//! Samples of equal size that stay in a file, and are read when a batch needs them.

use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::augment::Augmentation;
use crate::batch::{Pass, Values};
use crate::byte_file::ByteFile;
use crate::error::DataError;
use crate::normalization::Normalization;
use crate::pixels::Image;
use crate::rows::FileRows;
use crate::schema::Column;

/// Samples of one split, images or rows of numbers, that stay in a file; their classes are in memory.
#[derive(Debug, Clone)]
pub struct StoredSamples {
    content: Content,
    /// The classes of all samples of the file.
    labels: Arc<Labels>,
    /// The indices of these samples in the file.
    samples: Vec<usize>,
}

/// What a file holds.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// Images, the channels of a pixel side by side.
    Images(FileImages),
    /// Rows of numbers, which these columns standardise.
    Rows(Arc<FileRows>, Arc<[Column]>),
}

/// Images in a file, one after the other.
#[derive(Debug, Clone)]
pub(super) struct FileImages {
    pub(super) file: Arc<ByteFile>,
    /// The offset of the first.
    pub(super) offset: u64,
    /// Height, width and channels.
    pub(super) shape: [usize; 3],
    /// The augmentation in training.
    pub(super) augmentation: Augmentation,
    pub(super) normalization: Option<Normalization>,
}

/// Classes in as few bytes as they need.
#[derive(Debug)]
pub(super) enum Labels {
    /// At most 256 classes.
    Bytes(Vec<u8>),
    /// More.
    Words(Vec<u32>),
}

impl Labels {
    /// These labels.
    pub(super) fn new(labels: Vec<u32>) -> Self {
        let bytes: Result<Vec<u8>, _> = labels.iter().map(|&label| label.try_into()).collect();
        bytes.map_or(Self::Words(labels), Self::Bytes)
    }

    /// The class of a sample.
    pub(super) fn get(&self, sample: usize) -> u32 {
        match self {
            Self::Bytes(labels) => labels[sample].into(),
            Self::Words(labels) => labels[sample],
        }
    }
}

impl StoredSamples {
    /// The samples with these indices in a file, whose samples all have a label.
    pub(super) fn new(content: Content, labels: &Arc<Labels>, samples: Vec<usize>) -> Self {
        Self { content, labels: Arc::clone(labels), samples }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Adds the samples to a hash, as if they were in memory.
    pub(super) fn hash(&self, hasher: &mut Xxh3) -> Result<(), DataError> {
        let mut row = vec![];
        for &sample in &self.samples {
            match &self.content {
                Content::Images(images) => hasher.update(&images.read(sample)?),
                Content::Rows(rows, columns) => {
                    row.clear();
                    rows.read(sample, &mut row)?;
                    standardise(&mut row, columns);
                    hasher.update(bytemuck::cast_slice(&row));
                }
            }
        }
        for &sample in &self.samples {
            match &*self.labels {
                Labels::Bytes(labels) => hasher.update(&labels[sample..=sample]),
                Labels::Words(labels) => hasher.update(bytemuck::cast_slice(&labels[sample..=sample])),
            }
        }
        Ok(())
    }

    /// The statistics that images are normalised by, if they are not those of MNIST.
    pub(super) fn normalization(&self) -> Option<&Normalization> {
        match &self.content {
            Content::Images(images) => images.normalization.as_ref(),
            Content::Rows(..) => None,
        }
    }

    /// Reads and, for training, augments these samples.
    pub(super) fn gather(&self, samples: &[usize], pass: Pass) -> Result<(Values, Vec<u32>), DataError> {
        let values = match &self.content {
            Content::Images(images) => {
                let mut levels = vec![];
                for &sample in samples {
                    let own = images.read(self.samples[sample])?;
                    levels.extend(
                        images.augmentation.apply(Image::new(images.shape, own), pass, sample).levels,
                    );
                }
                Values::Levels(levels)
            }
            Content::Rows(rows, columns) => {
                let mut values = vec![];
                for &sample in samples {
                    let start = values.len();
                    rows.read(self.samples[sample], &mut values)?;
                    standardise(&mut values[start..], columns);
                }
                Values::Numbers(values)
            }
        };
        let targets = samples.iter().map(|&sample| self.labels.get(self.samples[sample])).collect();
        Ok((values, targets))
    }
}

fn standardise(row: &mut [f32], columns: &[Column]) {
    for (value, column) in row.iter_mut().zip(columns) {
        *value = column.standardised(*value);
    }
}

impl FileImages {
    pub(super) fn read(&self, image: usize) -> Result<Vec<u8>, DataError> {
        let size: usize = self.shape.iter().product();
        self.file.read(self.offset + (image * size) as u64, size)
    }
}

/// Other samples of the same file.
impl PartialEq for StoredSamples {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.labels, &other.labels) && self.samples == other.samples
    }
}
