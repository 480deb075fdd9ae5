//! Rows of numbers, in memory or in a file, and their statistics.

use std::path::Path;
use std::sync::Arc;

use crate::byte_file::{ByteFile, Spool};
use crate::error::DataError;
use crate::schema::Column;

/// Rows of equally many numbers.
#[derive(Debug)]
pub(super) enum Rows {
    /// One after the other.
    Memory { width: usize, values: Vec<f32> },
    /// In a file.
    File(Arc<FileRows>),
}

impl Rows {
    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Memory { width, values } => values.len() / width.max(&1),
            Self::File(rows) => rows.count,
        }
    }

    /// Appends a row to `values`.
    pub(super) fn read(&self, row: usize, into: &mut Vec<f32>) -> Result<(), DataError> {
        match self {
            Self::Memory { width, values } => into.extend(&values[row * width..][..*width]),
            Self::File(rows) => rows.read(row, into)?,
        }
        Ok(())
    }

    /// The columns of these names, with their statistics over `rows`.
    pub(super) fn statistics(&self, names: &[String], rows: &[usize]) -> Result<Vec<Column>, DataError> {
        // The terms of a column are added in the order of rows, whether these are in memory or not.
        let mean_of = |term: &dyn Fn(usize, f64) -> f64| {
            let mut sums = vec![0.0; names.len()];
            let mut values = vec![];
            for &row in rows {
                values.clear();
                self.read(row, &mut values)?;
                for (column, (sum, &value)) in sums.iter_mut().zip(&values).enumerate() {
                    *sum += term(column, f64::from(value));
                }
            }
            Ok(sums.into_iter().map(|sum| sum / rows.len() as f64).collect::<Vec<_>>())
        };
        let means = mean_of(&|_, value| value)?;
        let squares = mean_of(&|column, value| (value - means[column]).powi(2))?;
        let column = |((name, mean), square): ((&String, f64), f64)| Column {
            name: name.clone(),
            mean,
            deviation: square.sqrt(),
        };
        Ok(names.iter().zip(means.iter().copied()).zip(squares).map(column).collect())
    }
}

/// Rows in a file, one after the other, each number little-endian.
#[derive(Debug)]
pub(super) struct FileRows {
    pub(super) file: ByteFile,
    /// The offset of the first row.
    pub(super) offset: u64,
    /// Numbers in a row.
    pub(super) width: usize,
    /// Rows.
    pub(super) count: usize,
    /// Whether a number has 64 bits, and not 32.
    pub(super) is_wide: bool,
}

impl FileRows {
    /// Appends a row to `values`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a number is not finite.
    pub(super) fn read(&self, row: usize, values: &mut Vec<f32>) -> Result<(), DataError> {
        let size = self.width * if self.is_wide { 8 } else { 4 };
        let bytes = self.file.read(self.offset + (row * size) as u64, size)?;
        let start = values.len();
        match self.is_wide {
            true => values.extend(bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes) as f32)),
            false => values.extend(bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes))),
        }
        match values[start..].iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(column) => {
                let value = values[start + column];
                let problem = format!("has {value} in column {column}: expected a finite 32-bit number");
                Err(DataError::record(&self.file.path(), row, problem))
            }
        }
    }
}

/// Collects rows: in memory up to a limit, and beyond it in an unnamed temporary file.
#[derive(Debug)]
pub(super) struct RowWriter<'a> {
    /// Where the rows come from.
    path: &'a Path,
    width: usize,
    in_memory_bytes: u64,
    values: Vec<f32>,
    spool: Option<Spool>,
    count: usize,
}

impl<'a> RowWriter<'a> {
    /// For rows of `width` numbers from `path`.
    pub(super) fn new(path: &'a Path, width: usize, in_memory_bytes: u64) -> Self {
        Self { path, width, in_memory_bytes, values: vec![], spool: None, count: 0 }
    }

    /// Adds a row.
    pub(super) fn push(&mut self, row: &[f32]) -> Result<(), DataError> {
        debug_assert_eq!(row.len(), self.width);
        self.count += 1;
        if let Some(spool) = &mut self.spool {
            return spool.write_numbers(row);
        }
        self.values.extend(row);
        if size_of_val(&*self.values) as u64 > self.in_memory_bytes {
            self.spool.insert(Spool::new(self.path)?).write_numbers(&std::mem::take(&mut self.values))?;
        }
        Ok(())
    }

    /// The rows, to be read.
    pub(super) fn finish(self) -> Result<Rows, DataError> {
        let Self { width, count, values, .. } = self;
        let Some(spool) = self.spool else { return Ok(Rows::Memory { width, values }) };
        let file = spool.finish()?;
        Ok(Rows::File(Arc::new(FileRows { file, offset: 0, width, count, is_wide: false })))
    }
}

impl Spool {
    fn write_numbers(&mut self, numbers: &[f32]) -> Result<(), DataError> {
        numbers.iter().try_for_each(|number| self.write(&number.to_le_bytes()))
    }
}
