//! Tables of numbers, in CSV, Parquet and Arrow files.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use super::split::nine_to_one;
use crate::dataset::{Column, Dataset, Kind, Schema, list};
use crate::files;
use crate::stored::{Labels, NumberWriter, Numbers, Reals, Rows, StoredSamples};
use crate::{DataError, Options, Source};

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
use self::labels::{Names, Targets};

/// Reads the table in the files of a source; every tenth row is held out.
/// The classes are the distinct labels in order, as numbers if all are integers and as words otherwise. Features, and the target of a regression, are
/// standardised by the mean and the standard deviation of the training rows.
/// With a `known` schema and number of classes, finds columns by name, standardises them by the statistics of the schema, and numbers classes as it
/// does. Ignores other columns. Without a column for the label, no row is held out, and all labels are 0. The table from which the schema was made
/// has the same samples with and without it.
pub(super) fn read(
    source: &Source,
    options: &Options,
    known: Option<(&Schema, usize)>,
) -> Result<Dataset, DataError> {
    let path = source.path().expect("a table is in files");
    let files = files::named(path)?;
    let read: fn(&Path, &mut Filling) -> Result<(), DataError> = match source {
        Source::Csv(_) => csv::read,
        #[cfg(feature = "parquet")]
        Source::Parquet(_) => parquet::read,
        #[cfg(feature = "arrow")]
        Source::Arrow(_) => arrow::read,
        _ => unreachable!("`local` refuses tables whose features are missing"),
    };
    let target = options.target.as_deref();
    let is_regression = known.map_or(target.is_some(), |(schema, _)| schema.target.is_some());
    let layout = |header: &[String]| match (header::problem(header), known) {
        (Some(problem), _) => Err(problem),
        (None, Some((schema, _))) => Layout::by(header, schema),
        (None, None) => Layout::of(header, target),
    };
    let targets = if is_regression { Targets::Numbers(vec![]) } else { Targets::Classes(Names::default()) };
    let mut table = Filling {
        first: &files[0],
        layout: &layout,
        header: vec![],
        columns: Layout::default(),
        numbers: NumberWriter::new(path, options.in_memory_bytes),
        targets: Some(targets),
    };
    for file in &files {
        // The library of a format may panic on a damaged file. The panic becomes an error, and the partly filled table is dropped.
        catch_unwind(AssertUnwindSafe(|| read(file, &mut table))).unwrap_or_else(|_| {
            Err(DataError::file(file, "is damaged, or of a kind that cannot be read: write it again"))
        })?;
    }
    let table = table.finish()?;
    if let Some((schema, classes)) = known {
        return table.dataset_as(schema, classes);
    }
    if matches!(source, Source::Csv(_)) {
        header::check(&files[0], &table)?;
    }
    table.dataset()
}

/// A table that is being read, one file after the other.
struct Filling<'a> {
    /// The first file, whose header determines the columns of the others.
    first: &'a Path,
    /// Selects the columns to use from a header.
    layout: &'a dyn Fn(&[String]) -> Result<Layout, String>,
    header: Vec<String>,
    columns: Layout,
    numbers: NumberWriter<'a, f32>,
    /// The labels, if there is a column for them.
    targets: Option<Targets>,
}

impl<'a> Filling<'a> {
    /// Begins a file with these columns. The error describes the problem of the header.
    fn begin(&mut self, file: &Path, header: Vec<String>) -> Result<(), String> {
        if file == self.first {
            self.columns = (self.layout)(&header)?;
            self.targets = self.targets.take().filter(|_| self.columns.label.is_some());
            self.header = header;
        } else if header != self.header {
            let (found, expected) = (list(&header), list(&self.header));
            let first = self.first.display();
            return Err(format!("has the columns {found}: expected {expected}, as in `{first}`"));
        }
        Ok(())
    }

    fn finish(self) -> Result<Table<'a>, DataError> {
        let Self { header, columns, numbers, targets, .. } = self;
        let name = |column: usize| header[column].clone();
        let features: Vec<_> = columns.features.into_iter().map(name).collect();
        let (path, width) = (numbers.path, features.len());
        let rows =
            Rows { width, count: numbers.count / width.max(1), numbers: Reals::F32(numbers.finish()?) };
        Ok(Table { path, features, rows, label: columns.label.map(name), targets })
    }
}

struct Table<'a> {
    path: &'a Path,
    features: Vec<String>,
    rows: Rows,
    /// The name of the column of labels, if any.
    label: Option<String>,
    targets: Option<Targets>,
}

impl Table<'_> {
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
        let names = self.label.as_slice();
        let numbers = Reals::F32(Numbers::Memory(values.to_vec()));
        let target = Rows { width: 1, count: values.len(), numbers }.statistics(names, train)?.remove(0);
        if target.deviation == 0.0 {
            let mean = target.mean;
            let problem = format!("the target is {mean} in all training rows: there is nothing to predict");
            return Err(self.column_problem(problem));
        }
        Ok(target)
    }

    fn column_problem(&self, problem: String) -> DataError {
        DataError::column(self.path, self.label.as_deref().unwrap_or_default(), problem)
    }
}

fn standardised(target: &Column, values: &[f32]) -> Vec<u32> {
    values.iter().map(|&value| target.standardised(value).to_bits()).collect()
}

fn dataset(rows: Rows, schema: Schema, classes: usize, labels: Vec<u32>, parts: [Vec<usize>; 2]) -> Dataset {
    let content = rows.standardised(&schema.columns);
    let labels = Arc::new(Labels::Words(labels));
    let [train, test] = parts.map(|part| StoredSamples::new(content.clone(), &labels, part));
    Dataset { kind: Kind::Table { features: schema.columns.len(), classes }, train, test, schema }
}

fn finite(cell: &str) -> Option<f32> {
    cell.parse().ok().filter(|value: &f32| value.is_finite())
}

#[cfg(test)]
mod tests;
