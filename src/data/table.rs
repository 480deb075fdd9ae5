//! Tables of numbers in CSV files, held in memory.

use std::fs;
use std::path::Path;

use csv::{ErrorKind, Position, ReaderBuilder, StringRecord, Trim};

use super::split::nine_to_one;
use super::{DataError, Dataset, Kind, Split};

/// Reads the table in `file`; every tenth row is to test on.
///
/// The classes are the different labels in order, as numbers if all are whole numbers and as words otherwise. Features
/// are standardised by the mean and the deviation of the rows to train on.
///
/// # Errors
///
/// If the file is unreadable, has no column but the label's, or too few rows; if a row has another number of cells than
/// the header, or a feature is not a finite number.
pub(super) fn read(file: &Path) -> Result<Dataset, DataError> {
    let table = Table::read(file)?;
    let rows = table.labels.len();
    let (train, test) = nine_to_one(rows);
    if test.is_empty() {
        return Err(DataError::TooShort { path: file.into(), what: "rows", found: rows, expected: 10 });
    }
    let scales: Vec<_> = (0..table.features).map(|feature| table.scale(feature, &train)).collect();
    let (classes, labels) = number(&table.labels);
    let split = |rows: &[usize]| {
        let row = |&row: &usize| table.row(row).iter().zip(&scales).map(|(value, scale)| scale.apply(*value));
        let values = rows.iter().flat_map(row).collect();
        Split::Table { values, labels: rows.iter().map(|&row| labels[row]).collect() }
    };
    let kind = Kind::Table { features: table.features, classes };
    Ok(Dataset { kind, train: split(&train), test: split(&test) })
}

/// A table as it stands in the file.
struct Table {
    features: usize,
    values: Vec<f32>,
    labels: Vec<String>,
}

impl Table {
    fn read(path: &Path) -> Result<Self, DataError> {
        let text = fs::read(path).map_err(|error| DataError::Read { path: path.into(), error })?;
        let line = |position: Option<&Position>| line_of(&text, position.map_or(0, Position::byte) as usize);
        let at = |line, problem| DataError::Line { path: path.into(), line, problem };
        let unreadable = |error: csv::Error| {
            let line = line(error.position());
            match error.into_kind() {
                ErrorKind::Utf8 { err, .. } => at(line, format!("is not UTF-8: {err}")),
                other => at(line, format!("cannot be read: {other:?}")),
            }
        };
        // Flexible: we say ourselves which line has too few cells.
        let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(text.as_slice());
        let header = reader.headers().map_err(unreadable)?.clone();
        if header.len() < 2 {
            let problem = format!("has {} columns: expected features and a label", header.len());
            return Err(at(1, problem));
        }
        let label = header.iter().position(|name| name == "label").unwrap_or(header.len() - 1);
        let mut table = Self { features: header.len() - 1, values: vec![], labels: vec![] };
        let mut row = StringRecord::new();
        while reader.read_record(&mut row).map_err(unreadable)? {
            if row.len() != header.len() {
                let problem = format!("has {} cells: expected {}, as in the header", row.len(), header.len());
                return Err(at(line(row.position()), problem));
            }
            for (index, cell) in row.iter().enumerate() {
                let wrong = |expected: &str| DataError::Cell {
                    path: path.into(),
                    line: line(row.position()),
                    column: header[index].into(),
                    problem: format!("`{cell}` is no {expected}: expected one"),
                };
                if index != label {
                    let value = cell.parse().ok().filter(|value: &f32| value.is_finite());
                    table.values.push(value.ok_or_else(|| wrong("finite number"))?);
                } else if cell.is_empty() {
                    return Err(wrong("label"));
                } else {
                    table.labels.push(cell.into());
                }
            }
        }
        Ok(table)
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.features..][..self.features]
    }

    fn scale(&self, feature: usize, rows: &[usize]) -> Scale {
        let mean_of = |term: &dyn Fn(f64) -> f64| {
            let sum: f64 = rows.iter().map(|&row| term(f64::from(self.row(row)[feature]))).sum();
            sum / rows.len() as f64
        };
        let mean = mean_of(&|value| value);
        let deviation = mean_of(&|value| (value - mean).powi(2)).sqrt();
        Scale { mean, deviation }
    }
}

/// The line, from 1, of the row that begins at this byte or, since rows begin where the one before has ended, after the
/// ends of lines that are there.
fn line_of(text: &[u8], byte: usize) -> u64 {
    let is_end = |byte: &&u8| [b'\r', b'\n'].contains(*byte);
    let start = byte + text[byte..].iter().take_while(is_end).count();
    1 + text[..start].iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// How a feature is spread.
struct Scale {
    mean: f64,
    deviation: f64,
}

impl Scale {
    fn apply(&self, value: f32) -> f32 {
        // A feature that is always the same says nothing; but it may differ in a row to test on.
        let deviation = if self.deviation > 0.0 { self.deviation } else { 1.0 };
        ((f64::from(value) - self.mean) / deviation) as f32
    }
}

/// How many different labels there are, and each label's place among them.
fn number(labels: &[String]) -> (usize, Vec<u32>) {
    /// `names` in order and each once, and the place of each label among them.
    fn places<T: Ord>(labels: &[T]) -> (usize, Vec<u32>) {
        let mut names: Vec<&T> = labels.iter().collect();
        names.sort();
        names.dedup();
        let place = |label: &T| names.partition_point(|&name| name < label) as u32;
        (names.len(), labels.iter().map(place).collect())
    }
    match labels.iter().map(|label| label.parse()).collect::<Result<Vec<i64>, _>>() {
        Ok(numbers) => places(&numbers),
        Err(_) => places(labels),
    }
}

#[cfg(test)]
mod tests;
