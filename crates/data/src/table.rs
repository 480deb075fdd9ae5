//! Tables of numbers, in CSV, Parquet and Arrow files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::schema::list;
use super::split::nine_to_one;
use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::files;
use crate::rows::{RowWriter, Rows};
use crate::schema::{Column, Schema};
use crate::source::Options;
use crate::stored::{Content, Labels, StoredSamples};

#[cfg(feature = "arrow")]
mod arrow;
#[cfg(any(feature = "parquet", feature = "arrow"))]
mod batches;
mod csv;
mod header;
mod labels;
#[cfg(feature = "parquet")]
mod parquet;
mod parts;

use self::header::Layout;
use self::labels::Names;

/// The format of a table's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Csv,
    #[cfg(feature = "parquet")]
    Parquet,
    /// Arrow's file format or its stream format.
    #[cfg(feature = "arrow")]
    Arrow,
}

/// Reads the table in the files that `path` names; every tenth row is held out.
///
/// The classes are the distinct labels in order, as numbers if all are whole numbers and as words otherwise. Features, and the
/// target of a regression, are standardised by the mean and the standard deviation of the training rows.
///
/// For a `known` schema and number of classes, finds columns by name, standardises them by its statistics, and numbers classes
/// as it does. Ignores other columns. If there is no column for the label, no row is held out, and all labels are 0. The table
/// that the schema is of gives the same samples as without it.
pub(super) fn read(
    format: Format,
    path: &Path,
    options: &Options,
    known: Option<(&Schema, usize)>,
) -> Result<Dataset, DataError> {
    let files = files::named(path)?;
    let target = options.target.as_deref();
    let layout = |header: &[String]| match known {
        Some((schema, _)) => Layout::by(header, schema),
        None => Layout::of(header, target),
    };
    let table = table(format, path, &files, options, layout)?;
    if let Some((schema, classes)) = known {
        return table.dataset_as(path, schema, classes);
    }
    if format == Format::Csv {
        header::check(&files[0], &table)?;
    }
    table.dataset(path, target.is_some())
}

/// Returns the table in these files.
fn table(
    format: Format,
    path: &Path,
    files: &[PathBuf],
    options: &Options,
    layout: impl Fn(&[String]) -> Result<Layout, String>,
) -> Result<Table, DataError> {
    match format {
        Format::Csv => parts::read::<csv::Part>(path, files, options, layout),
        #[cfg(feature = "parquet")]
        Format::Parquet => parts::read::<parquet::Part>(path, files, options, layout),
        #[cfg(feature = "arrow")]
        Format::Arrow => parts::read::<arrow::Part>(path, files, options, layout),
    }
}

fn names(names: &[String]) -> impl Iterator<Item = &str> {
    names.iter().map(String::as_str)
}

/// The raw contents of a table.
struct Table {
    /// The names of the features, in the order of a row.
    features: Vec<String>,
    rows: Rows,
    /// The name of the column of labels, if any.
    label: Option<String>,
    labels: Option<Names>,
}

impl Table {
    fn label_name(&self) -> &str {
        self.label.as_deref().unwrap_or_default()
    }

    /// Returns the table as a data set of its own, for a regression or a classification.
    fn dataset(self, path: &Path, is_regression: bool) -> Result<Dataset, DataError> {
        let labels = self.labels.as_ref().expect("the last column, if none has this name");
        let rows = self.rows.count;
        let (train, test) = nine_to_one(rows);
        if test.is_empty() {
            return Err(DataError::too_short(path, "rows", rows, 10));
        }
        let columns = self.rows.statistics(&self.features, &train)?;
        let features = columns.len();
        let (target, classes, numbers) = if is_regression {
            let target = self.target(path, labels, &train)?;
            let numbers = labels.numbered_by(|label| self.standardised(path, &target, label))?;
            (Some(target), Vec::new(), numbers)
        } else {
            labels.check_classes().map_err(|problem| self.column_problem(path, problem))?;
            let (classes, numbers) = labels.numbered();
            (None, classes, numbers)
        };
        // A regression has one output.
        let kind = Kind::Table { features, classes: classes.len().max(1) };
        let schema = Schema { classes, columns, label: self.label, target, normalization: None };
        let [train, test] = splits(self.rows, &schema.columns, numbers, [train, test]);
        Ok(Dataset { kind, train, test, schema })
    }

    /// Returns the table as data for a model that knows other data.
    fn dataset_as(self, path: &Path, known: &Schema, classes: usize) -> Result<Dataset, DataError> {
        let rows = self.rows.count;
        if rows == 0 {
            return Err(DataError::too_short(path, "rows", 0, 1));
        }
        let number = |label: &str| {
            if let Some(target) = &known.target {
                return self.standardised(path, target, label);
            }
            known.number(label, classes).ok_or_else(|| {
                let known = list(names(&known.classes));
                let problem = format!("`{label}` is not a class that the model knows: expected {known}");
                self.column_problem(path, problem)
            })
        };
        let (numbers, (train, test)) = match &self.labels {
            Some(labels) => (labels.numbered_by(number)?, nine_to_one(rows)),
            None => (vec![0; rows], ((0..rows).collect(), vec![])),
        };
        let schema = Schema { label: self.label, ..known.clone() };
        let kind = Kind::Table { features: schema.columns.len(), classes };
        let [train, test] = splits(self.rows, &schema.columns, numbers, [train, test]);
        Ok(Dataset { kind, train, test, schema })
    }

    /// Returns the target of a regression, with its statistics over the training rows.
    fn target(&self, path: &Path, labels: &Names, train: &[usize]) -> Result<Column, DataError> {
        let values = labels.numbered_by(|label| Ok(self.number(path, label)?.to_bits()))?;
        let values = || train.iter().map(|&row| f64::from(f32::from_bits(values[row])));
        let mean = values().sum::<f64>() / train.len() as f64;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / train.len() as f64;
        if variance == 0.0 {
            let problem = format!("the target is {mean} in all training rows: there is nothing to predict");
            return Err(self.column_problem(path, problem));
        }
        Ok(Column { name: self.label_name().to_owned(), mean, deviation: variance.sqrt() })
    }

    /// Returns the bits of a target, standardised.
    fn standardised(&self, path: &Path, target: &Column, label: &str) -> Result<u32, DataError> {
        Ok(target.standardised(self.number(path, label)?).to_bits())
    }

    fn number(&self, path: &Path, label: &str) -> Result<f32, DataError> {
        let problem = || format!("`{label}` is not a finite number: expected the target of a regression");
        finite(label).ok_or_else(|| self.column_problem(path, problem()))
    }

    fn column_problem(&self, path: &Path, problem: String) -> DataError {
        DataError::column(path, self.label_name(), problem)
    }
}

/// Parts of a table, given by the indices of their rows, as the input of a model.
fn splits(
    rows: Rows,
    columns: &[Column],
    labels: Vec<u32>,
    parts: [Vec<usize>; 2],
) -> [Arc<StoredSamples>; 2] {
    let (rows, columns) = rows.standardised(columns);
    let content = Content::Rows(Arc::new(rows), columns.into());
    let labels = Arc::new(Labels::Words(labels));
    parts.map(|part| StoredSamples::new(content.clone(), &labels, part))
}

fn finite(cell: &str) -> Option<f32> {
    cell.parse().ok().filter(|value: &f32| value.is_finite())
}

#[cfg(test)]
mod tests;
