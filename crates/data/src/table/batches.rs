//! Record batches: rows in columnar formats.

use std::fmt::{Debug, Display};
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrowPrimitiveType, RecordBatch, downcast_integer_array};
use arrow_schema::{DataType, Schema};

use super::Filling;
use crate::error::DataError;

impl Filling<'_> {
    /// Begins the file at `path`, and returns the columns to read, in the order of the schema.
    pub(super) fn begin_batches(&mut self, path: &Path, schema: &Schema) -> Result<Vec<usize>, DataError> {
        let header = schema.fields().iter().map(|field| field.name().clone()).collect();
        self.begin(path, header).map_err(|problem| DataError::file(path, problem))?;
        let mut used: Vec<_> = self.columns.features.iter().copied().chain(self.columns.label).collect();
        used.sort_unstable();
        Ok(used)
    }

    /// Adds a batch of rows of the file at `path`, with its `used` columns. `before` is the number of rows before it in the file.
    pub(super) fn push_batch(
        &mut self,
        path: &Path,
        before: usize,
        used: &[usize],
        batch: &RecordBatch,
    ) -> Result<(), DataError> {
        let array = |column: usize| &**batch.column(used.partition_point(|&other| other < column));
        let refused = |column: usize, problem: String| DataError::column(path, &self.header[column], problem);
        let numbers = |&column: &usize| {
            let values = values(array(column), before, "numbers", numbers);
            values.and_then(|values| finite(&values, before)).map_err(|problem| refused(column, problem))
        };
        let columns: Vec<_> = self.columns.features.iter().map(numbers).collect::<Result<_, _>>()?;
        for place in 0..batch.num_rows() {
            self.numbers.extend(columns.iter().map(|column| column[place]))?;
        }
        if let (Some(column), Some(targets)) = (self.columns.label, &mut self.targets) {
            let texts = values(array(column), before, "words or whole numbers", texts);
            let texts = texts.map_err(|problem| refused(column, problem))?;
            for (row, label) in (before..).zip(&texts) {
                targets.push(label).map_err(|expected| {
                    refused(column, format!("row {row} has `{label}`: expected a {expected}"))
                })?;
            }
        }
        Ok(())
    }
}

pub(super) fn undecodable(path: &Path, before: usize, error: &dyn Display) -> DataError {
    DataError::file(path, format!("cannot be decoded from row {before} on: {error}; write it again"))
}

/// Returns the values of a column, converted by `plain`. None may be missing; the error describes the problem.
fn values<T: Clone>(
    array: &dyn Array,
    before: usize,
    expected: &str,
    plain: impl Fn(&dyn Array) -> Option<Vec<T>>,
) -> Result<Vec<T>, String> {
    let values = unpacked(array, plain)
        .ok_or_else(|| format!("is of the type {}: expected {expected}", array.data_type()))?;
    // Checked last: other types may claim any number of rows, for each of which this check needs memory.
    let nulls = array.logical_nulls();
    match nulls.and_then(|nulls| nulls.iter().position(|is_there| !is_there)) {
        None => Ok(values),
        Some(place) => Err(format!("row {} has no value: expected one in every row", before + place)),
    }
}

/// Returns the values of an array, or the values in its dictionary to which it refers, converted by `plain`; `None` for a type that `plain` does not
/// support. Missing values are arbitrary.
pub(super) fn unpacked<T: Clone>(
    array: &dyn Array,
    plain: impl Fn(&dyn Array) -> Option<Vec<T>>,
) -> Option<Vec<T>> {
    let Some(dictionary) = array.as_any_dictionary_opt() else { return plain(array) };
    let values = plain(dictionary.values())?;
    if values.is_empty() {
        return Some(values);
    }
    Some(dictionary.normalized_keys().into_iter().map(|key| values[key].clone()).collect())
}

pub(super) fn numbers(array: &dyn Array) -> Option<Vec<f64>> {
    fn wide<T: ArrowPrimitiveType<Native: Into<f64>>>(array: &dyn Array) -> Vec<f64> {
        array.as_primitive::<T>().values().iter().map(|&value| value.into()).collect()
    }
    Some(downcast_integer_array!(
        array => array.values().iter().map(|&value| value as f64).collect(),
        DataType::Boolean => array.as_boolean().values().iter().map(|value| f64::from(u8::from(value))).collect(),
        DataType::Float16 => wide::<Float16Type>(array),
        DataType::Float32 => wide::<Float32Type>(array),
        DataType::Float64 => wide::<Float64Type>(array),
        _ => return None,
    ))
}

pub(super) fn texts(array: &dyn Array) -> Option<Vec<String>> {
    /// Formats whole numbers with a fraction too, as CSV files do: `1.0`.
    fn shown<T: ArrowPrimitiveType<Native: Debug>>(array: &dyn Array) -> Vec<String> {
        array.as_primitive::<T>().values().iter().map(|value| format!("{value:?}")).collect()
    }
    fn words<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Vec<String> {
        values.map(|value| value.unwrap_or_default().trim().to_owned()).collect()
    }
    let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).trim().to_owned();
    Some(downcast_integer_array!(
        array => array.values().iter().map(ToString::to_string).collect(),
        DataType::Boolean => array.as_boolean().values().iter().map(|value| value.to_string()).collect(),
        DataType::Float16 => shown::<Float16Type>(array),
        DataType::Float32 => shown::<Float32Type>(array),
        DataType::Float64 => shown::<Float64Type>(array),
        DataType::Utf8 => words(array.as_string::<i32>().iter()),
        DataType::LargeUtf8 => words(array.as_string::<i64>().iter()),
        DataType::Utf8View => words(array.as_string_view().iter()),
        // Words in Parquet files that are not marked as text.
        DataType::Binary => array.as_binary::<i32>().iter().map(text).collect(),
        _ => return None,
    ))
}

/// Converts values to the numbers with which a model computes, all of which must be finite. `before` is the number of rows before them in the file.
fn finite(values: &[f64], before: usize) -> Result<Vec<f32>, String> {
    let narrow = |(&value, row): (&f64, usize)| match value as f32 {
        number if number.is_finite() => Ok(number),
        _ => Err(format!("row {row} has {value}: expected a finite 32-bit number")),
    };
    values.iter().zip(before..).map(narrow).collect()
}
