//! Tables of numbers in CSV files, held in memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use csv::{ErrorKind, Position, ReaderBuilder, StringRecord, Trim};

use super::schema::list;
use super::split::nine_to_one;
use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::schema::{Column, Schema};
use crate::split::Split;

mod header;

use header::Layout;

/// Reads the table in `file`; every tenth row is held out.
///
/// The classes are the distinct labels in order, as numbers if all are whole numbers and as words otherwise. Features
/// are standardised by the mean and the standard deviation of the training rows.
///
/// # Errors
///
/// If the file is unreadable, has no column besides the label's, or too few rows; if a row and the header differ in length,
/// or a feature is not a finite number; if the header is missing, or the label is not a class.
pub(super) fn read(file: &Path) -> Result<Dataset, DataError> {
    let table = Table::read(file, &content(file)?, Layout::of)?;
    header::check(file, &table)?;
    let labels = table.labels.as_ref().expect("the last column, if none has this name");
    let rows = labels.len();
    let (train, test) = nine_to_one(rows);
    if test.is_empty() {
        return Err(DataError::TooShort { path: file.into(), what: "rows", found: rows, expected: 10 });
    }
    check_classes(file, &table, labels)?;
    let columns = table.features.iter().enumerate();
    let columns: Vec<_> = columns.map(|(at, name)| table.column(at, name, &train)).collect();
    let (classes, numbers) = number(labels);
    let kind = Kind::Table { features: columns.len(), classes: classes.len() };
    let schema = Schema { classes, columns, label: Some(table.label_name().to_owned()) };
    let split = |rows: &[usize]| table.split(rows, &schema.columns, &numbers);
    Ok(Dataset { kind, train: split(&train), test: split(&test), schema })
}

/// Reads the table in `file` for a model: finds columns by name, standardises them by the given statistics,
/// and numbers classes as given. Ignores other columns.
///
/// If it has no column for the label, no row is held out, and all labels are 0. The same table gives the same samples as
/// [`read`].
///
/// # Errors
///
/// If the file is unreadable, lacks a column, or has no row or an unknown label.
pub(super) fn read_as(file: &Path, known: &Schema, classes: usize) -> Result<Dataset, DataError> {
    let table = Table::read(file, &content(file)?, |header| Layout::by(header, known))?;
    let rows = table.values.len() / table.features.len().max(1);
    if rows == 0 {
        return Err(DataError::TooShort { path: file.into(), what: "rows", found: 0, expected: 1 });
    }
    let number = |label: &String| {
        known.number(label, classes).ok_or_else(|| DataError::Column {
            path: file.into(),
            column: table.label_name().into(),
            problem: format!(
                "`{label}` is not a class that the model knows: expected {}",
                list(names(&known.classes))
            ),
        })
    };
    let (numbers, (train, test)) = match &table.labels {
        Some(labels) => (labels.iter().map(number).collect::<Result<_, _>>()?, nine_to_one(rows)),
        None => (vec![0; rows], ((0..rows).collect(), vec![])),
    };
    let schema = Schema { label: table.label.clone(), ..known.clone() };
    let split = |rows: &[usize]| table.split(rows, &schema.columns, &numbers);
    let kind = Kind::Table { features: schema.columns.len(), classes };
    Ok(Dataset { kind, train: split(&train), test: split(&test), schema })
}

fn content(file: &Path) -> Result<Vec<u8>, DataError> {
    fs::read(file).map_err(|error| DataError::Read { path: file.into(), error })
}

fn names(names: &[String]) -> impl Iterator<Item = &str> {
    names.iter().map(String::as_str)
}

/// The raw contents of a table.
struct Table {
    /// The names of the features, in the order of the values.
    features: Vec<String>,
    values: Vec<f32>,
    /// The name of the column of labels, if any.
    label: Option<String>,
    labels: Option<Vec<String>>,
}

impl Table {
    /// Reads the columns that `layout` selects from a header.
    fn read(
        path: &Path,
        text: &[u8],
        layout: impl Fn(&[String]) -> Result<Layout, String>,
    ) -> Result<Self, DataError> {
        let line = |position: Option<&Position>| line_of(text, position.map_or(0, Position::byte) as usize);
        let at = |line, problem| DataError::Line { path: path.into(), line, problem };
        let unreadable = |error: csv::Error| {
            let line = line(error.position());
            match error.into_kind() {
                ErrorKind::Utf8 { err, .. } => at(line, format!("is not UTF-8: {err}")),
                other => at(line, format!("cannot be read: {other:?}")),
            }
        };
        // Flexible: lines with too few cells are reported here.
        let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(text);
        let header: Vec<String> = reader.headers().map_err(unreadable)?.iter().map(Into::into).collect();
        if let Some(problem) = header::problem(&header) {
            return Err(at(1, problem));
        }
        let Layout { features, label } = layout(&header).map_err(|problem| at(1, problem))?;
        let mut table = Self {
            features: features.iter().map(|&column| header[column].clone()).collect(),
            values: vec![],
            label: label.map(|column| header[column].clone()),
            labels: label.map(|_| vec![]),
        };
        let mut row = StringRecord::new();
        while reader.read_record(&mut row).map_err(unreadable)? {
            if row.len() != header.len() {
                let problem = format!("has {} cells: expected {}, as in the header", row.len(), header.len());
                return Err(at(line(row.position()), problem));
            }
            let wrong = |column: usize, expected: &str| DataError::Cell {
                path: path.into(),
                line: line(row.position()),
                column: header[column].clone(),
                problem: format!("`{}` is not a {expected}: expected one", &row[column]),
            };
            for &column in &features {
                table.values.push(finite(&row[column]).ok_or_else(|| wrong(column, "finite number"))?);
            }
            if let (Some(column), Some(labels)) = (label, &mut table.labels) {
                match &row[column] {
                    "" => return Err(wrong(column, "label")),
                    cell => labels.push(cell.into()),
                }
            }
        }
        Ok(table)
    }

    fn label_name(&self) -> &str {
        self.label.as_deref().unwrap_or_default()
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.features.len()..][..self.features.len()]
    }

    /// The statistics of a feature over some rows.
    fn column(&self, feature: usize, name: &str, rows: &[usize]) -> Column {
        let mean_of = |term: &dyn Fn(f64) -> f64| {
            let sum: f64 = rows.iter().map(|&row| term(f64::from(self.row(row)[feature]))).sum();
            sum / rows.len() as f64
        };
        let mean = mean_of(&|value| value);
        let deviation = mean_of(&|value| (value - mean).powi(2)).sqrt();
        Column { name: name.to_owned(), mean, deviation }
    }

    /// Some rows, as the input of a model.
    fn split(&self, rows: &[usize], columns: &[Column], labels: &[u32]) -> Split {
        let row = |&row: &usize| {
            self.row(row).iter().zip(columns).map(|(value, column)| column.standardised(*value))
        };
        let values = rows.iter().flat_map(row).collect();
        Split::Table { values, labels: rows.iter().map(|&row| labels[row]).collect() }
    }
}

fn finite(cell: &str) -> Option<f32> {
    cell.parse().ok().filter(|value: &f32| value.is_finite())
}

/// The line, from 1, of the row that starts at this byte. The position is that of the end of the previous row, so line ends
/// at the position are skipped.
fn line_of(text: &[u8], byte: usize) -> u64 {
    let is_end = |byte: &&u8| [b'\r', b'\n'].contains(*byte);
    let start = byte + text[byte..].iter().take_while(is_end).count();
    1 + text[..start].iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Refuses labels from which nothing can be learnt: equal in all rows, or continuous quantities, which hardly ever repeat.
fn check_classes(file: &Path, table: &Table, labels: &[String]) -> Result<(), DataError> {
    // Fractions that are classes have few distinct values.
    const MOST_FRACTIONS: usize = 100;
    let refuse = |problem| {
        let column = table.label_name().into();
        Err(DataError::Column { path: file.into(), column, problem })
    };
    let different: BTreeSet<&str> = names(labels).collect();
    let (found, rows) = (different.len(), labels.len());
    if found == 1 {
        let only = &labels[0];
        return refuse(format!("the label is `{only}` in all {rows} rows: expected at least two classes"));
    }
    let all = |is_so: &dyn Fn(&str) -> bool| different.iter().all(|label| is_so(label));
    let is_number = |label: &str| label.parse::<f64>().is_ok();
    let has_fractions = !all(&|label| label.parse::<i64>().is_ok());
    let is_rarely_twice = found > 10 && 2 * found > rows;
    if all(&is_number) && (is_rarely_twice || (has_fractions && found > MOST_FRACTIONS)) {
        return refuse(format!(
            "the label has {found} different numbers in {rows} rows, like a continuous quantity: expected classes (a quantity cannot be \
             learnt here; divide it into ranges)"
        ));
    }
    Ok(())
}

/// The distinct labels in order, and the index of each label among them.
fn number(labels: &[String]) -> (Vec<String>, Vec<u32>) {
    /// Sorts and deduplicates `labels`; returns them, and the index of each label.
    fn places<T: Ord + ToString>(labels: &[T]) -> (Vec<String>, Vec<u32>) {
        let names: Vec<&T> = labels.iter().collect::<BTreeSet<_>>().into_iter().collect();
        let place = |label: &T| names.partition_point(|&name| name < label) as u32;
        let places = labels.iter().map(place).collect();
        (names.into_iter().map(T::to_string).collect(), places)
    }
    match labels.iter().map(|label| label.parse()).collect::<Result<Vec<i64>, _>>() {
        Ok(numbers) => places(&numbers),
        Err(_) => places(labels),
    }
}

#[cfg(test)]
mod tests;
