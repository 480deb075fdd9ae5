//! Tables of numbers, in CSV, Parquet and Arrow files.

use std::panic::{AssertUnwindSafe, catch_unwind};
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
    let layout = |header: &[String]| match (header::problem(header), known) {
        (Some(problem), _) => Err(problem),
        (None, Some((schema, _))) => Layout::by(header, schema),
        (None, None) => Layout::of(header, target),
    };
    let table = Table::read(format, path, &files, options.in_memory_bytes, layout)?;
    if let Some((schema, classes)) = known {
        return table.dataset_as(path, schema, classes);
    }
    if format == Format::Csv {
        header::check(&files[0], &table)?;
    }
    table.dataset(path, target.is_some())
}

impl Format {
    /// Opens a file, and finds out what its columns are.
    fn open(self, path: &Path) -> Result<Part<'_>, DataError> {
        guarded(path, || match self {
            Self::Csv => csv::open(path),
            #[cfg(feature = "parquet")]
            Self::Parquet => parquet::open(path),
            #[cfg(feature = "arrow")]
            Self::Arrow => arrow::open(path),
        })
    }

    /// Returns the error of a file whose header has this problem.
    fn refused(self, path: &Path, problem: String) -> DataError {
        if self == Self::Csv { DataError::line(path, 1, problem) } else { DataError::file(path, problem) }
    }
}

/// One of the files of a table, opened.
struct Part<'a> {
    /// The names of its columns.
    header: Vec<String>,
    /// Adds its rows to a table with this header.
    read: Read<'a>,
}

type Read<'a> = Box<dyn FnOnce(&mut Filling) -> Result<(), DataError> + 'a>;

/// Guards the work on a file. A damaged one may make the library of its format panic, which is an error like others:
/// the partly filled value is dropped.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(DataError::file(path, "is damaged, or of a kind that cannot be read: write it again"))
    })
}

/// A table that is being read.
struct Filling<'a> {
    header: Vec<String>,
    columns: Layout,
    rows: RowWriter<'a>,
    /// If there is a column for them.
    labels: Option<Names>,
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
    /// Reads the columns that `layout` selects from the header that `files` have in common; `path` names these.
    fn read(
        format: Format,
        path: &Path,
        files: &[PathBuf],
        in_memory_bytes: u64,
        layout: impl Fn(&[String]) -> Result<Layout, String>,
    ) -> Result<Self, DataError> {
        let (first, others) = files.split_first().expect("a name means a file");
        let part = format.open(first)?;
        let columns = layout(&part.header).map_err(|problem| format.refused(first, problem))?;
        let mut table = Filling {
            header: part.header,
            rows: RowWriter::new(path, columns.features.len(), in_memory_bytes),
            labels: columns.label.map(|_| Names::default()),
            columns,
        };
        guarded(first, || (part.read)(&mut table))?;
        for file in others {
            let part = format.open(file)?;
            if part.header != table.header {
                let (found, expected) = (list(names(&part.header)), list(names(&table.header)));
                let first = first.display();
                let problem = format!("has the columns {found}: expected {expected}, as in `{first}`");
                return Err(format.refused(file, problem));
            }
            guarded(file, || (part.read)(&mut table))?;
        }
        let Filling { header, columns, rows, labels } = table;
        let name = |column: usize| header[column].clone();
        let features = columns.features.into_iter().map(name).collect();
        Ok(Self { features, rows: rows.finish()?, label: columns.label.map(name), labels })
    }

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
        let outputs = classes.len().max(1);
        let schema = Schema { classes, columns, label: self.label, target, normalization: None };
        Ok(dataset(self.rows, schema, outputs, numbers, [train, test]))
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
        Ok(dataset(self.rows, schema, classes, numbers, [train, test]))
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

/// Returns the data set of these parts of a table, given by the indices of their rows.
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
