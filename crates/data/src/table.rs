//! Tables of numbers, in CSV, Parquet and Arrow files.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
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

use self::header::Layout;
use self::labels::Targets;

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
/// The classes are the distinct labels in order, as numbers if all are integers and as words otherwise. Features, and the target of a regression, are
/// standardised by the mean and the standard deviation of the training rows.
///
/// With a `known` schema and number of classes, finds columns by name, standardises them by the statistics of the schema, and numbers classes as it
/// does. Ignores other columns. Without a column for the label, no row is held out, and all labels are 0. The table from which the schema was made
/// has the same samples with and without it.
pub(super) fn read(
    format: Format,
    path: &Path,
    options: &Options,
    known: Option<(&Schema, usize)>,
) -> Result<Dataset, DataError> {
    let files = files::named(path)?;
    let target = options.target.as_deref();
    let is_regression = known.map_or(target.is_some(), |(schema, _)| schema.target.is_some());
    let layout = |header: &[String]| match (header::problem(header), known) {
        (Some(problem), _) => Err(problem),
        (None, Some((schema, _))) => Layout::by(header, schema),
        (None, None) => Layout::of(header, target),
    };
    let mut table = Filling {
        first: &files[0],
        layout: &layout,
        is_regression,
        header: vec![],
        columns: Layout::default(),
        rows: RowWriter::new(path, options.in_memory_bytes),
        targets: None,
    };
    files.iter().try_for_each(|file| format.read(file, &mut table))?;
    let table = table.finish()?;
    if let Some((schema, classes)) = known {
        return table.dataset_as(schema, classes);
    }
    if format == Format::Csv {
        header::check(&files[0], &table)?;
    }
    table.dataset()
}

impl Format {
    /// Adds the rows of a file to a table. The library of a format may panic on a damaged file. The panic becomes an error, and the partly filled
    /// table is dropped.
    fn read(self, path: &Path, table: &mut Filling) -> Result<(), DataError> {
        let read = || match self {
            Self::Csv => csv::read(path, table),
            #[cfg(feature = "parquet")]
            Self::Parquet => parquet::read(path, table),
            #[cfg(feature = "arrow")]
            Self::Arrow => arrow::read(path, table),
        };
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
            Err(DataError::file(path, "is damaged, or of a kind that cannot be read: write it again"))
        })
    }
}

/// A table that is being read, one file after the other.
struct Filling<'a> {
    /// The first file, whose header determines the columns of the others.
    first: &'a Path,
    /// Selects the columns to use from a header.
    layout: &'a dyn Fn(&[String]) -> Result<Layout, String>,
    is_regression: bool,
    header: Vec<String>,
    columns: Layout,
    rows: RowWriter<'a>,
    /// The labels, if there is a column for them.
    targets: Option<Targets>,
}

impl<'a> Filling<'a> {
    /// Begins a file with these columns. The error describes the problem of the header.
    fn begin(&mut self, file: &Path, header: Vec<String>) -> Result<(), String> {
        if file == self.first {
            self.columns = (self.layout)(&header)?;
            self.targets = self.columns.label.map(|_| Targets::new(self.is_regression));
            self.header = header;
        } else if header != self.header {
            let (found, expected) = (list(names(&header)), list(names(&self.header)));
            let first = self.first.display();
            return Err(format!("has the columns {found}: expected {expected}, as in `{first}`"));
        }
        Ok(())
    }

    fn finish(self) -> Result<Table<'a>, DataError> {
        let Self { header, columns, rows, targets, .. } = self;
        let name = |column: usize| header[column].clone();
        let features: Vec<_> = columns.features.into_iter().map(name).collect();
        let (path, rows) = (rows.path, rows.finish(features.len())?);
        Ok(Table { path, features, rows, label: columns.label.map(name), targets })
    }
}

fn names(names: &[String]) -> impl Iterator<Item = &str> {
    names.iter().map(String::as_str)
}

/// The raw contents of a table.
struct Table<'a> {
    /// The name of the files.
    path: &'a Path,
    /// The names of the features, in the order of a row.
    features: Vec<String>,
    rows: Rows,
    /// The name of the column of labels, if any.
    label: Option<String>,
    targets: Option<Targets>,
}

impl Table<'_> {
    fn label_name(&self) -> &str {
        self.label.as_deref().unwrap_or_default()
    }

    /// Returns the table as a new data set.
    fn dataset(self) -> Result<Dataset, DataError> {
        let rows = self.rows.count;
        let (train, test) = nine_to_one(rows);
        if test.is_empty() {
            return Err(DataError::too_short(self.path, "rows", rows, 10));
        }
        let columns = self.rows.statistics(&self.features, &train)?;
        let targets = self.targets.as_ref().expect("the last column, if none has this name");
        let (target, classes, numbers) = match targets {
            Targets::Numbers(values) => {
                let target = self.target(values, &train)?;
                let numbers = standardised(&target, values);
                (Some(target), Vec::new(), numbers)
            }
            Targets::Classes(names) => {
                names.check_classes().map_err(|problem| self.column_problem(problem))?;
                let (classes, numbers) = names.numbered();
                (None, classes, numbers)
            }
        };
        // A regression has one output.
        let outputs = classes.len().max(1);
        let schema = Schema { classes, columns, label: self.label, target, normalization: None };
        Ok(dataset(self.rows, schema, outputs, numbers, [train, test]))
    }

    /// Returns the table as data for a model with a known schema.
    fn dataset_as(self, known: &Schema, classes: usize) -> Result<Dataset, DataError> {
        let rows = self.rows.count;
        if rows == 0 {
            return Err(DataError::too_short(self.path, "rows", 0, 1));
        }
        let number = |label: &str| {
            let number = known.number(label, classes);
            number.map_err(|problem| self.column_problem(format!("`{label}` {problem}")))
        };
        let (numbers, (train, test)) = match &self.targets {
            Some(Targets::Classes(names)) => (names.numbered_by(number)?, nine_to_one(rows)),
            Some(Targets::Numbers(values)) => {
                let target = known.target.as_ref().expect("a regression has one");
                (standardised(target, values), nine_to_one(rows))
            }
            None => (vec![0; rows], ((0..rows).collect(), vec![])),
        };
        let schema = Schema { label: self.label, ..known.clone() };
        Ok(dataset(self.rows, schema, classes, numbers, [train, test]))
    }

    /// Returns the target of a regression, with its statistics over the training rows.
    fn target(&self, values: &[f32], train: &[usize]) -> Result<Column, DataError> {
        let of_training = || train.iter().map(|&row| f64::from(values[row]));
        let mean = of_training().sum::<f64>() / train.len() as f64;
        let variance = of_training().map(|value| (value - mean).powi(2)).sum::<f64>() / train.len() as f64;
        if variance == 0.0 {
            let problem = format!("the target is {mean} in all training rows: there is nothing to predict");
            return Err(self.column_problem(problem));
        }
        Ok(Column { name: self.label_name().to_owned(), mean, deviation: variance.sqrt() })
    }

    fn column_problem(&self, problem: String) -> DataError {
        DataError::column(self.path, self.label_name(), problem)
    }
}

/// Returns the bits of the targets of a regression, standardised.
fn standardised(target: &Column, values: &[f32]) -> Vec<u32> {
    values.iter().map(|&value| target.standardised(value).to_bits()).collect()
}

/// Returns the data set of a table, with the rows of each part.
fn dataset(rows: Rows, schema: Schema, classes: usize, labels: Vec<u32>, parts: [Vec<usize>; 2]) -> Dataset {
    let (rows, columns) = rows.standardised(&schema.columns);
    let content = Content::Rows(Arc::new(rows), columns.into());
    let labels = Arc::new(Labels::Words(labels));
    let [train, test] = parts.map(|part| StoredSamples::new(content.clone(), &labels, part));
    Dataset { kind: Kind::Table { features: schema.columns.len(), classes }, train, test, schema }
}

fn finite(cell: &str) -> Option<f32> {
    cell.parse().ok().filter(|value: &f32| value.is_finite())
}

#[cfg(test)]
mod tests;
