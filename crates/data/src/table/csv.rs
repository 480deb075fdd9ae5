//! Reads CSV files, row by row.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use csv::{ErrorKind, Position, ReaderBuilder, StringRecord, Trim};

use super::{Filling, finite};
use crate::error::DataError;

/// The record that follows each file. It is in the cell of a quote that is not closed.
const END: &str = "\0end of table\0";

pub(super) fn read(path: &Path, table: &mut Filling) -> Result<(), DataError> {
    let file = File::open(path).map_err(DataError::read(path))?;
    let end = format!("\n{END}");
    // Flexible, since lines with too few cells are reported here.
    let mut reader =
        ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(file.chain(end.as_bytes()));
    let header = reader.headers().map_err(|error| unreadable(path, error))?;
    is_end(header).map_err(|problem| DataError::line(path, 1, problem))?;
    let header = header.iter().filter(|&cell| cell != END).map(Into::into).collect();
    table.begin(path, header).map_err(|problem| DataError::line(path, 1, problem))?;
    let mut cells = StringRecord::new();
    let mut row = Vec::with_capacity(table.columns.features.len());
    while reader.read_record(&mut cells).map_err(|error| unreadable(path, error))? {
        let line = || line_of(path, cells.position());
        if is_end(&cells).map_err(|problem| DataError::line(path, line(), problem))? {
            break;
        }
        if cells.len() != table.header.len() {
            let (found, expected) = (cells.len(), table.header.len());
            let problem = format!("has {found} cells: expected {expected}, as in the header");
            return Err(DataError::line(path, line(), problem));
        }
        let wrong = |column: usize, expected: &str| DataError::File {
            path: path.into(),
            place: format!(", line {}, column `{}`", line(), table.header[column]),
            problem: format!("`{}` is not a {expected}: expected one", &cells[column]),
        };
        for &column in &table.columns.features {
            row.push(finite(&cells[column]).ok_or_else(|| wrong(column, "finite number"))?);
        }
        table.numbers.extend(row.drain(..))?;
        if let (Some(column), Some(targets)) = (table.columns.label, &mut table.targets) {
            targets.push(&cells[column]).map_err(|expected| wrong(column, expected))?;
        }
    }
    Ok(())
}

/// Returns whether this record is [`END`]. The error describes an open quote, whose cell contains it.
fn is_end(cells: &StringRecord) -> Result<bool, &'static str> {
    match cells.iter().next_back() {
        Some(END) if cells.len() == 1 => Ok(true),
        Some(last) if last.ends_with(END) => Err("has a quote that is not closed"),
        _ => Ok(false),
    }
}

fn unreadable(path: &Path, error: csv::Error) -> DataError {
    let line = line_of(path, error.position());
    match error.into_kind() {
        ErrorKind::Io(error) => DataError::read(path)(error),
        ErrorKind::Utf8 { err, .. } => DataError::line(path, line, format!("is not UTF-8: {err}")),
        other => DataError::line(path, line, format!("cannot be read: {other:?}")),
    }
}

/// Returns the line, from 1, of the row that starts at this position. The position is the end of the previous row, so line ends there are skipped.
/// The reader counts only `\n` as the end of a line, so the file is read again. A pipe cannot be.
fn line_of(path: &Path, position: Option<&Position>) -> u64 {
    let Some(position) = position else { return 1 };
    let Some(text) = path.is_file().then(|| File::open(path).ok()).flatten() else { return position.line() };
    let (mut line, mut last) = (1, b' ');
    for (at, byte) in (0..).zip(BufReader::new(text).bytes().map_while(Result::ok)) {
        match byte {
            b'\n' if last == b'\r' => {}
            b'\n' | b'\r' => line += 1,
            _ if at >= position.byte() => break,
            _ => {}
        }
        last = byte;
    }
    line
}
