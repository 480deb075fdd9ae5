//! Samples of equal size, images or rows of numbers, in memory or in a file.

use std::borrow::Cow;
use std::hash::Hasher;
use std::sync::Arc;

use crate::augment::Augmentation;
use crate::batch::{Pass, Values};
use crate::byte_file::ByteFile;
use crate::error::DataError;
use crate::normalization::Normalization;
use crate::pixels::Image;
use crate::rows::Rows;
use crate::schema::Column;
use crate::split::Split;

/// Samples of equal size, and their classes, which are in memory.
#[derive(Debug, Clone)]
pub struct StoredSamples {
    content: Content,
    /// The classes of all samples of the content.
    labels: Arc<Labels>,
    /// The indices of these samples in the content.
    samples: Vec<usize>,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    Images(Images),
    /// Rows of numbers, and the columns that standardise them.
    Rows(Arc<Rows>, Arc<[Column]>),
}

/// Images with interleaved channels.
#[derive(Debug, Clone)]
pub(super) struct Images {
    pub(super) levels: Levels,
    /// Height, width and channels.
    pub(super) shape: [usize; 3],
    pub(super) augmentation: Augmentation,
    pub(super) normalization: Option<Normalization>,
}

#[derive(Debug, Clone)]
pub(super) enum Levels {
    Memory(Arc<[u8]>),
    /// Levels in a file, from this offset.
    File(Arc<ByteFile>, u64),
}

/// Classes in as few bytes as possible.
#[derive(Debug)]
pub(super) enum Labels {
    /// At most 256 classes.
    Bytes(Vec<u8>),
    /// More classes.
    Words(Vec<u32>),
}

impl Labels {
    pub(super) fn new(labels: Vec<u32>) -> Self {
        let bytes: Result<Vec<u8>, _> = labels.iter().map(|&label| label.try_into()).collect();
        bytes.map_or(Self::Words(labels), Self::Bytes)
    }

    pub(super) fn get(&self, sample: usize) -> u32 {
        match self {
            Self::Bytes(labels) => labels[sample].into(),
            Self::Words(labels) => labels[sample],
        }
    }
}

impl Images {
    pub(super) fn new(levels: Levels, shape: [usize; 3]) -> Self {
        Self { levels, shape, augmentation: Augmentation::default(), normalization: None }
    }

    pub(super) fn read(&self, image: usize) -> Result<Cow<'_, [u8]>, DataError> {
        let size: usize = self.shape.iter().product();
        match &self.levels {
            Levels::Memory(levels) => Ok(levels[image * size..][..size].into()),
            Levels::File(file, offset) => Ok(file.read(offset + (image * size) as u64, size)?.into()),
        }
    }
}

impl StoredSamples {
    /// Returns the samples with these indices in the content. All samples of the content have a label.
    pub(super) fn new(content: Content, labels: &Arc<Labels>, samples: Vec<usize>) -> Arc<Self> {
        Arc::new(Self { content, labels: Arc::clone(labels), samples })
    }

    /// Returns images in memory, of this height, width and number of channels, with one class each.
    ///
    /// # Panics
    ///
    /// If the number of levels does not fit the images.
    pub fn images(shape: [usize; 3], levels: Vec<u8>, labels: Vec<u8>) -> Arc<Self> {
        assert_eq!(levels.len(), shape.iter().product::<usize>() * labels.len(), "levels of other images");
        let samples = (0..labels.len()).collect();
        let content = Content::Images(Images::new(Levels::Memory(levels.into()), shape));
        Self::new(content, &Arc::new(Labels::Bytes(labels)), samples)
    }

    /// Returns rows of numbers in memory, one after the other, with one class each, or the [bits](f32::to_bits) of one number.
    ///
    /// # Panics
    ///
    /// If there are no rows, or they differ in length.
    pub fn table(values: Vec<f32>, labels: Vec<u32>) -> Arc<Self> {
        assert!(values.len().is_multiple_of(labels.len()), "rows of different lengths");
        let (count, samples) = (labels.len(), (0..labels.len()).collect());
        let rows = Arc::new(Rows::in_memory(values.len() / count, values));
        Self::new(Content::Rows(rows, [].into()), &Arc::new(Labels::Words(labels)), samples)
    }
}

impl Split for StoredSamples {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn hash(&self, hasher: &mut dyn Hasher) -> Result<(), DataError> {
        let mut row = vec![];
        for &sample in &self.samples {
            match &self.content {
                Content::Images(images) => hasher.write(&images.read(sample)?),
                Content::Rows(rows, columns) => {
                    row.clear();
                    rows.read(sample, columns, &mut row)?;
                    hasher.write(bytemuck::cast_slice(&row));
                }
            }
        }
        for &sample in &self.samples {
            match &*self.labels {
                Labels::Bytes(labels) => hasher.write(&labels[sample..=sample]),
                Labels::Words(labels) => hasher.write(bytemuck::cast_slice(&labels[sample..=sample])),
            }
        }
        Ok(())
    }

    fn normalization(&self) -> Option<&Normalization> {
        match &self.content {
            Content::Images(images) => images.normalization.as_ref(),
            Content::Rows(..) => None,
        }
    }

    /// Reads and, for training, augments these samples.
    fn gather(&self, samples: &[usize], pass: Pass) -> Result<(Values, Vec<u32>), DataError> {
        let values = match &self.content {
            Content::Images(images) => {
                let mut levels = Vec::with_capacity(samples.len() * images.shape.iter().product::<usize>());
                for &sample in samples {
                    let own = images.read(self.samples[sample])?;
                    if images.augmentation.is_empty() {
                        levels.extend_from_slice(&own);
                    } else {
                        let image = Image::new(images.shape, own.into_owned());
                        levels.extend(images.augmentation.apply(image, pass, sample).levels);
                    }
                }
                Values::Levels(levels)
            }
            Content::Rows(rows, columns) => {
                let mut values = vec![];
                samples.iter().try_for_each(|&at| rows.read(self.samples[at], columns, &mut values))?;
                Values::Numbers(values)
            }
        };
        let targets = samples.iter().map(|&sample| self.labels.get(self.samples[sample])).collect();
        Ok((values, targets))
    }
}
