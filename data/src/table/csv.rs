//! Reads CSV files, row by row.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use csv::{ErrorKind, Position, Reader, ReaderBuilder, StringRecord, Trim};

use super::{Layout, Names, RowWriter, Table, finite, header, list, names};
use crate::error::DataError;
use crate::source::Options;

/// Reads the columns that `layout` selects from the header that `files` have in common; `path` names these.
pub(super) fn read(
    path: &Path,
    files: &[PathBuf],
    options: &Options,
    layout: impl Fn(&[String]) -> Result<Layout, String>,
) -> Result<Table, DataError> {
    let mut parts = files.iter().map(|file| Part::open(file));
    let first = parts.next().expect("a name means a file")?;
    let header = first.header.clone();
    let columns = header::problem(&header).map_or_else(|| layout(&header), Err);
    let columns = columns.map_err(|problem| first.at(1, problem))?;
    let mut table = Filling {
        rows: RowWriter::new(path, columns.features.len(), options.in_memory_bytes),
        labels: columns.label.map(|_| Names::default()),
        columns,
    };
    first.read(&mut table)?;
    for part in parts {
        let part = part?;
        if part.header != header {
            let (found, expected) = (list(names(&part.header)), list(names(&header)));
            let problem =
                format!("has the columns {found}: expected {expected}, as in `{}`", files[0].display());
            return Err(part.at(1, problem));
        }
        part.read(&mut table)?;
    }
    let Filling { columns, rows, labels } = table;
    Ok(Table {
        features: columns.features.iter().map(|&column| header[column].clone()).collect(),
        rows: rows.finish()?,
        label: columns.label.map(|column| header[column].clone()),
        labels,
    })
}

/// A table that is being read.
struct Filling<'a> {
    columns: Layout,
    rows: RowWriter<'a>,
    labels: Option<Names>,
}

/// One of the files.
struct Part<'a> {
    path: &'a Path,
    reader: Reader<File>,
    header: Vec<String>,
}

impl<'a> Part<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(|error| DataError::Read { path: path.into(), error })?;
        // Flexible: lines with too few cells are reported here.
        let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(file);
        let header = reader.headers().map(|header| header.iter().map(Into::into).collect());
        let header = header.map_err(|error| unreadable(path, error))?;
        Ok(Self { path, reader, header })
    }

    /// Adds the rows to a table.
    fn read(mut self, table: &mut Filling) -> Result<(), DataError> {
        let mut cells = StringRecord::new();
        let mut row = Vec::with_capacity(table.columns.features.len());
        while self.reader.read_record(&mut cells).map_err(|error| unreadable(self.path, error))? {
            let line = || line_of(self.path, cells.position());
            if cells.len() != self.header.len() {
                let (found, expected) = (cells.len(), self.header.len());
                let problem = format!("has {found} cells: expected {expected}, as in the header");
                return Err(self.at(line()?, problem));
            }
            let wrong = |column: usize, expected: &str| match line() {
                Ok(line) => DataError::Cell {
                    path: self.path.into(),
                    line,
                    column: self.header[column].clone(),
                    problem: format!("`{}` is not a {expected}: expected one", &cells[column]),
                },
                Err(error) => error,
            };
            row.clear();
            for &column in &table.columns.features {
                row.push(finite(&cells[column]).ok_or_else(|| wrong(column, "finite number"))?);
            }
            table.rows.push(&row)?;
            if let (Some(column), Some(labels)) = (table.columns.label, &mut table.labels) {
                match &cells[column] {
                    "" => return Err(wrong(column, "label")),
                    cell => labels.push(cell),
                }
            }
        }
        Ok(())
    }

    fn at(&self, line: u64, problem: String) -> DataError {
        DataError::Line { path: self.path.into(), line, problem }
    }
}

fn unreadable(path: &Path, error: csv::Error) -> DataError {
    let line = line_of(path, error.position());
    match (error.into_kind(), line) {
        (ErrorKind::Io(error), _) => DataError::Read { path: path.into(), error },
        (_, Err(error)) => error,
        (ErrorKind::Utf8 { err, .. }, Ok(line)) => {
            DataError::Line { path: path.into(), line, problem: format!("is not UTF-8: {err}") }
        }
        (other, Ok(line)) => {
            DataError::Line { path: path.into(), line, problem: format!("cannot be read: {other:?}") }
        }
    }
}

/// The line, from 1, of the row that starts at this position. It is that of the end of the previous row, so line ends at the
/// position are skipped.
fn line_of(path: &Path, position: Option<&Position>) -> Result<u64, DataError> {
    let count = || -> io::Result<u64> {
        let mut text = BufReader::new(File::open(path)?);
        let mut ends = 0;
        let mut before = (&mut text).take(position.map_or(0, Position::byte));
        loop {
            let block = before.fill_buf()?;
            if block.is_empty() {
                break;
            }
            ends += block.iter().filter(|&&byte| byte == b'\n').count() as u64;
            let length = block.len();
            before.consume(length);
        }
        for byte in text.bytes() {
            match byte? {
                b'\n' => ends += 1,
                b'\r' => {}
                _ => break,
            }
        }
        Ok(1 + ends)
    };
    count().map_err(|error| DataError::Read { path: path.into(), error })
}
