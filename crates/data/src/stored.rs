//! Samples of equal size, images or rows of numbers, in memory or in a file, and the statistics of rows.

use std::borrow::Cow;
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;

use crate::byte_file::{ByteFile, Spool};
use crate::{Augmentation, Column, DataError, Image, Normalization, Pass, Split, Values};

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

/// Rows of equal length, one after the other.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) width: usize,
    pub(super) count: usize,
    numbers: Numbers,
}

/// Numbers in memory, or little-endian ones in a file from an offset, of 64 bits if `is_wide`, otherwise of 32.
#[derive(Debug)]
enum Numbers {
    Memory(Vec<f32>),
    File { file: ByteFile, offset: u64, is_wide: bool },
}

impl Rows {
    pub(super) fn in_memory(width: usize, values: Vec<f32>) -> Self {
        Self { width, count: values.len() / width.max(1), numbers: Numbers::Memory(values) }
    }

    pub(super) fn in_file(file: ByteFile, offset: u64, [count, width]: [usize; 2], is_wide: bool) -> Self {
        Self { width, count, numbers: Numbers::File { file, offset, is_wide } }
    }

    /// Appends a row to `values`, standardised by the columns if there are any.
    pub(super) fn read(
        &self,
        row: usize,
        columns: &[Column],
        values: &mut Vec<f32>,
    ) -> Result<(), DataError> {
        let start = values.len();
        match &self.numbers {
            Numbers::Memory(all) => values.extend_from_slice(&all[row * self.width..][..self.width]),
            Numbers::File { file, offset, is_wide } => {
                let size = self.width * if *is_wide { 8 } else { 4 };
                let bytes = file.read(offset + (row * size) as u64, size)?;
                match is_wide {
                    true => values
                        .extend(bytes.as_chunks().0.iter().map(|&eight| f64::from_le_bytes(eight) as f32)),
                    false => values.extend(bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four))),
                }
                if let Some(column) = values[start..].iter().position(|value| !value.is_finite()) {
                    let value = values[start + column];
                    let problem = format!("has {value} in column {column}: expected a finite 32-bit number");
                    return Err(DataError::record(&file.path, row, problem));
                }
            }
        }
        values[start..]
            .iter_mut()
            .zip(columns)
            .for_each(|(value, column)| *value = column.standardised(*value));
        Ok(())
    }

    /// Returns columns with these names, and their statistics over `rows`.
    pub(super) fn statistics(&self, names: &[String], rows: &[usize]) -> Result<Vec<Column>, DataError> {
        // The terms of a column are added in the order of rows, both in memory and in a file.
        let mean_of = |term: &dyn Fn(usize, f64) -> f64| {
            let mut sums = vec![0.0; names.len()];
            let mut values = vec![];
            for &row in rows {
                values.clear();
                self.read(row, &[], &mut values)?;
                for (column, (sum, &value)) in sums.iter_mut().zip(&values).enumerate() {
                    *sum += term(column, f64::from(value));
                }
            }
            Ok::<_, DataError>(sums.into_iter().map(|sum| sum / rows.len() as f64).collect::<Vec<_>>())
        };
        let means = mean_of(&|_, value| value)?;
        let squares = mean_of(&|column, value| (value - means[column]).powi(2))?;
        let columns = names.iter().zip(means.iter().zip(squares));
        let column = |(name, (&mean, square)): (&String, (&f64, f64))| Column {
            name: name.clone(),
            mean,
            deviation: square.sqrt(),
        };
        Ok(columns.map(column).collect())
    }
}

/// Collects rows: in memory up to a limit, and beyond it in an unnamed temporary file.
pub(super) struct RowWriter<'a> {
    /// The file from which the rows come.
    pub(super) path: &'a Path,
    in_memory_bytes: u64,
    values: Vec<f32>,
    spool: Option<Spool>,
    count: usize,
}

impl<'a> RowWriter<'a> {
    pub(super) fn new(path: &'a Path, in_memory_bytes: u64) -> Self {
        Self { path, in_memory_bytes, values: vec![], spool: None, count: 0 }
    }

    pub(super) fn push(&mut self, row: &[f32]) -> Result<(), DataError> {
        self.count += 1;
        self.values.extend(row);
        if self.spool.is_none() && size_of_val(&*self.values) as u64 > self.in_memory_bytes {
            self.spool = Some(Spool::new(self.path)?);
        }
        if let Some(spool) = &mut self.spool {
            self.values.drain(..).try_for_each(|number| spool.write(&number.to_le_bytes()))?;
        }
        Ok(())
    }

    /// Returns the rows for reading, with `width` numbers each.
    pub(super) fn finish(self, width: usize) -> Result<Rows, DataError> {
        let numbers = self.count * width;
        Ok(match self.spool {
            None => {
                debug_assert_eq!(self.values.len(), numbers, "rows of other widths");
                Rows::in_memory(width, self.values)
            }
            Some(spool) => {
                let file = spool.finish()?;
                debug_assert_eq!(file.length, (numbers * size_of::<f32>()) as u64, "rows of other widths");
                Rows::in_file(file, 0, [self.count, width], false)
            }
        })
    }
}
