//! Groups of rows, in formats that keep the values of a column together.

use std::ops::Range;
use std::path::Path;

use super::parts::Filling;
use crate::error::DataError;

/// Rows of a file that are decoded together, column by column. An error describes the problem of a column.
pub(super) trait Group {
    /// Which rows of the file they are.
    fn rows(&self) -> Range<usize>;

    /// The values of a column of numbers.
    fn numbers(&self, column: usize) -> Result<Vec<f64>, String>;

    /// The values of a column of labels, as text.
    fn texts(&self, column: usize) -> Result<Vec<String>, String>;
}

impl Filling<'_> {
    /// Adds a group of rows of the file at `path`, which has this header.
    pub(super) fn push_group(
        &mut self,
        path: &Path,
        header: &[String],
        group: &impl Group,
    ) -> Result<(), DataError> {
        let rows = group.rows();
        let refused = |column: usize, problem: String| DataError::column(path, &header[column], problem);
        let numbers = |&column: &usize| {
            let values = group.numbers(column).and_then(|values| finite(&complete(values, &rows)?, &rows));
            values.map_err(|problem| refused(column, problem))
        };
        let columns: Vec<_> = self.columns.features.iter().map(numbers).collect::<Result<_, _>>()?;
        let mut row = Vec::with_capacity(columns.len());
        for place in 0..rows.len() {
            row.clear();
            row.extend(columns.iter().map(|column| column[place]));
            self.rows.push(&row)?;
        }
        if let (Some(column), Some(labels)) = (self.columns.label, &mut self.labels) {
            let texts = group.texts(column).and_then(|texts| complete(texts, &rows));
            texts.map_err(|problem| refused(column, problem))?.iter().for_each(|label| labels.push(label));
        }
        Ok(())
    }
}

/// Refuses values that are fewer than the rows, or more.
fn complete<T>(values: Vec<T>, rows: &Range<usize>) -> Result<Vec<T>, String> {
    match (values.len(), rows.len()) {
        (found, count) if found == count => Ok(values),
        (found, count) => Err(format!("has {found} values in {count} rows: expected one in every row")),
    }
}

/// The numbers with which a model computes, which are finite.
fn finite(values: &[f64], rows: &Range<usize>) -> Result<Vec<f32>, String> {
    let narrow = |(&value, row): (&f64, usize)| match value as f32 {
        number if number.is_finite() => Ok(number),
        _ => Err(format!("row {row} has {value}: expected a finite 32-bit number")),
    };
    values.iter().zip(rows.clone()).map(narrow).collect()
}
