//! Reads CSV files, row by row.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use csv::{ErrorKind, Position, Reader, ReaderBuilder, StringRecord, Trim};

use super::finite;
use super::parts::{self, Filling};
use crate::error::DataError;

/// One of the files.
pub(super) struct Part<'a> {
    path: &'a Path,
    reader: Reader<File>,
    header: Vec<String>,
}

impl<'a> parts::Part<'a> for Part<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::read(path))?;
        // Flexible: lines with too few cells are reported here.
        let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(file);
        let header = reader.headers().map(|header| header.iter().map(Into::into).collect());
        let header = header.map_err(|error| unreadable(path, error))?;
        Ok(Self { path, reader, header })
    }

    fn header(&self) -> &[String] {
        &self.header
    }

    fn refused(&self, problem: String) -> DataError {
        self.at(1, problem)
    }

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
                Ok(line) => DataError::File {
                    path: self.path.into(),
                    place: format!(", line {line}, column `{}`", self.header[column]),
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
}

impl Part<'_> {
    fn at(&self, line: u64, problem: String) -> DataError {
        DataError::line(self.path, line, problem)
    }
}

fn unreadable(path: &Path, error: csv::Error) -> DataError {
    let line = line_of(path, error.position());
    match (error.into_kind(), line) {
        (ErrorKind::Io(error), _) => DataError::read(path)(error),
        (_, Err(error)) => error,
        (ErrorKind::Utf8 { err, .. }, Ok(line)) => {
            DataError::line(path, line, format!("is not UTF-8: {err}"))
        }
        (other, Ok(line)) => DataError::line(path, line, format!("cannot be read: {other:?}")),
    }
}

/// Returns the line, from 1, of the row that starts at this position. It is that of the end of the previous row, so line
/// ends at the position are skipped.
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
    count().map_err(DataError::read(path))
}
