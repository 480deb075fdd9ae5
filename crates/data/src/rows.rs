//! Rows of numbers, in memory or in a file, and their statistics.

use std::path::Path;

use crate::byte_file::{ByteFile, Spool};
use crate::error::DataError;
use crate::schema::Column;

/// Rows of equal length, one after the other.
#[derive(Debug)]
pub(super) struct Rows {
    /// Numbers in a row.
    pub(super) width: usize,
    pub(super) count: usize,
    numbers: Numbers,
}

#[derive(Debug)]
enum Numbers {
    Memory(Vec<f32>),
    /// Little-endian numbers in a file from this offset, of 64 bits if `is_wide`, otherwise of 32.
    File {
        file: ByteFile,
        offset: u64,
        is_wide: bool,
    },
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
                    return Err(DataError::record(file.path(), row, problem));
                }
            }
        }
        standardise(&mut values[start..], columns);
        Ok(())
    }

    /// Standardises rows that are in memory. Returns the rows, and the columns by which to standardise them when they are read.
    pub(super) fn standardised(mut self, columns: &[Column]) -> (Self, &[Column]) {
        let Numbers::Memory(values) = &mut self.numbers else { return (self, columns) };
        values.chunks_exact_mut(self.width.max(1)).for_each(|row| standardise(row, columns));
        (self, &[])
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

fn standardise(row: &mut [f32], columns: &[Column]) {
    row.iter_mut().zip(columns).for_each(|(value, column)| *value = column.standardised(*value));
}

/// Collects rows: in memory up to a limit, and beyond it in an unnamed temporary file.
#[derive(Debug)]
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
                debug_assert_eq!(file.length(), (numbers * size_of::<f32>()) as u64, "rows of other widths");
                Rows::in_file(file, 0, [self.count, width], false)
            }
        })
    }
}
