//! Numbers in memory or in a file, samples of equal size that consist of them (images or rows), and the statistics of rows.

use std::borrow::Cow;
use std::hash::Hasher;
use std::mem;
use std::path::Path;
use std::sync::Arc;

use bytemuck::Pod;

use crate::byte_file::{BLOCK, ByteFile, Spool};
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
    pub(super) levels: Arc<Numbers<u8>>,
    /// Height, width and channels.
    pub(super) shape: [usize; 3],
    pub(super) augmentation: Augmentation,
    pub(super) normalization: Option<Normalization>,
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
    pub(super) fn new(levels: Numbers<u8>, shape: [usize; 3]) -> Self {
        let levels = Arc::new(levels);
        Self { levels, shape, augmentation: Augmentation::default(), normalization: None }
    }

    pub(super) fn read(&self, image: usize) -> Result<Cow<'_, [u8]>, DataError> {
        let size: usize = self.shape.iter().product();
        self.levels.read(image * size, size)
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
        let content = Content::Images(Images::new(Numbers::Memory(levels), shape));
        Self::new(content, &Arc::new(Labels::Bytes(labels)), samples)
    }

    /// Returns rows of numbers in memory, one after the other, with one class each, or the [bits](f32::to_bits) of one number.
    ///
    /// # Panics
    /// If there are no rows, or they differ in length.
    pub fn table(values: Vec<f32>, labels: Vec<u32>) -> Arc<Self> {
        assert!(values.len().is_multiple_of(labels.len()), "rows of different lengths");
        let (count, samples) = (labels.len(), (0..labels.len()).collect());
        let rows = Rows { width: values.len() / count, count, numbers: Reals::F32(Numbers::Memory(values)) };
        Self::new(rows.standardised(&[]), &Arc::new(Labels::Words(labels)), samples)
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
    pub(super) numbers: Reals,
}

/// Numbers of 32 or 64 bits.
#[derive(Debug)]
pub(super) enum Reals {
    F32(Numbers<f32>),
    F64(Numbers<f64>),
}

impl Rows {
    /// Returns the rows, standardised by the columns if there are any: now in memory, and at each read in a file.
    pub(super) fn standardised(mut self, columns: &[Column]) -> Content {
        let at_each_read = match &mut self.numbers {
            Reals::F32(Numbers::Memory(all)) => {
                standardise(all, columns);
                [].into()
            }
            _ => columns.into(),
        };
        Content::Rows(Arc::new(self), at_each_read)
    }

    /// Appends a row to `values`, standardised by the columns if there are any.
    pub(super) fn read(
        &self,
        row: usize,
        columns: &[Column],
        values: &mut Vec<f32>,
    ) -> Result<(), DataError> {
        let (first, start) = (row * self.width, values.len());
        match &self.numbers {
            Reals::F32(all) => values.extend_from_slice(&all.read(first, self.width)?),
            Reals::F64(all) => values.extend(all.read(first, self.width)?.iter().map(|&value| value as f32)),
        }
        let read = &mut values[start..];
        if let Reals::F32(Numbers::File(file, _)) | Reals::F64(Numbers::File(file, _)) = &self.numbers
            && let Some(column) = read.iter().position(|value| !value.is_finite())
        {
            let value = read[column];
            let problem = format!("has {value} in column {column}: expected a finite 32-bit number");
            return Err(DataError::record(&file.path, row, problem));
        }
        standardise(read, columns);
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

/// Standardises the values of whole rows by the columns, if there are any.
fn standardise(values: &mut [f32], columns: &[Column]) {
    let columns = columns.iter().cycle();
    values.iter_mut().zip(columns).for_each(|(value, column)| *value = column.standardised(*value));
}

/// Numbers in memory, or in a file from an offset.
#[derive(Debug)]
pub(super) enum Numbers<T> {
    Memory(Vec<T>),
    File(ByteFile, u64),
}

const _: () = assert!(cfg!(target_endian = "little"), "the numbers in files are little-endian");

impl<T: Pod> Numbers<T> {
    /// Returns this many numbers, from the number `first`.
    pub(super) fn read(&self, first: usize, count: usize) -> Result<Cow<'_, [T]>, DataError> {
        match self {
            Self::Memory(all) => Ok(all[first..][..count].into()),
            Self::File(file, offset) => {
                let mut numbers = vec![T::zeroed(); count];
                let bytes = bytemuck::cast_slice_mut(&mut numbers);
                file.read_into(offset + (first * size_of::<T>()) as u64, bytes)?;
                Ok(numbers.into())
            }
        }
    }
}

/// Collects numbers: in memory up to a limit, and beyond it in an unnamed temporary file.
pub(super) struct NumberWriter<'a, T> {
    /// The file from which the numbers come.
    pub(super) path: &'a Path,
    in_memory_bytes: u64,
    pub(super) count: usize,
    numbers: Vec<T>,
    spool: Option<Spool>,
}

impl<'a, T: Pod> NumberWriter<'a, T> {
    pub(super) fn new(path: &'a Path, in_memory_bytes: u64) -> Self {
        Self { path, in_memory_bytes, count: 0, numbers: vec![], spool: None }
    }

    pub(super) fn extend(&mut self, numbers: impl IntoIterator<Item = T>) -> Result<(), DataError> {
        let before = self.numbers.len();
        self.numbers.extend(numbers);
        self.count += self.numbers.len() - before;
        if self.spool.is_none() && size_of_val(&*self.numbers) as u64 > self.in_memory_bytes {
            self.spool = Some(Spool::new(self.path)?);
        }
        if let Some(spool) = &mut self.spool {
            // Not cleared, which would keep the memory of the limit.
            let numbers = mem::take(&mut self.numbers);
            bytemuck::cast_slice(&numbers).chunks(BLOCK).try_for_each(|block| spool.write(block))?;
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Numbers<T>, DataError> {
        let in_memory = || Ok(Numbers::Memory(self.numbers));
        self.spool.map_or_else(in_memory, |spool| Ok(Numbers::File(spool.finish()?, 0)))
    }
}
