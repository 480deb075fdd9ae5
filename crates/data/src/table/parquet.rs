//! Reads Parquet files, a group of rows at a time.

use std::io::BufReader;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, FileReader, Length, RowGroupReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use prost::bytes::Bytes;

use super::groups;
use super::parts::{self, Filling};
use crate::byte_file::{ByteFile, Reader};
use crate::error::DataError;

/// Values that are decoded at a time.
const BATCH: usize = 8192;

/// One of the files.
pub(super) struct Part<'a> {
    path: &'a Path,
    reader: SerializedFileReader<Chunks>,
    header: Vec<String>,
}

impl<'a> parts::Part<'a> for Part<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let file = ByteFile::open(path.into())?;
        let reader = SerializedFileReader::new(Chunks(Arc::new(file))).map_err(|error| {
            let problem = format!("is not a Parquet file, or damaged: {error}");
            DataError::file(path, problem)
        })?;
        let columns = reader.metadata().file_metadata().schema_descr().columns();
        let header = columns.iter().map(|column| column.path().string()).collect();
        Ok(Self { path, reader, header })
    }

    fn header(&self) -> &[String] {
        &self.header
    }

    fn refused(&self, problem: String) -> DataError {
        DataError::file(self.path, problem)
    }

    fn read(self, table: &mut Filling) -> Result<(), DataError> {
        let mut before = 0;
        for group in 0..self.reader.num_row_groups() {
            let group = self.reader.get_row_group(group).map_err(|error| self.refused(error.to_string()))?;
            let count = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
            let rows = before..before + count;
            before = rows.end;
            table.push_group(self.path, &self.header, &Group { reader: &*group, rows })?;
        }
        Ok(())
    }
}

/// A group of rows of a file.
struct Group<'a> {
    reader: &'a dyn RowGroupReader,
    rows: Range<usize>,
}

impl groups::Group for Group<'_> {
    fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    fn numbers(&self, column: usize) -> Result<Vec<f64>, String> {
        self.column(column, numbers)
    }

    fn texts(&self, column: usize) -> Result<Vec<String>, String> {
        self.column(column, texts)
    }
}

impl Group<'_> {
    /// The values of a column, as `decoded` makes them.
    fn column<T>(
        &self,
        column: usize,
        decoded: impl Fn(ColumnReader, &ColumnDescriptor) -> Result<Vec<T>, String>,
    ) -> Result<Vec<T>, String> {
        let group = self.reader.metadata();
        let descriptor = group.schema_descr().column(column);
        if descriptor.max_rep_level() > 0 {
            return Err("has lists: expected one value in every row".into());
        }
        let chunk = group.column(column);
        let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
        if start < 0 || chunk.compressed_size() < 0 {
            return Err("is damaged: its place in the file is negative".into());
        }
        let reader = self.reader.get_column_reader(column).map_err(|error| error.to_string())?;
        decoded(reader, &descriptor)
    }
}

/// The values of a column, without those that are missing.
fn values<T: DataType>(mut reader: ColumnReaderImpl<T>) -> Result<Vec<T::T>, String> {
    let (mut values, mut levels) = (vec![], vec![]);
    loop {
        levels.clear();
        let read = reader.read_records(BATCH, Some(&mut levels), None, &mut values);
        let (records, ..) = read.map_err(|error| format!("cannot be decoded: {error}"))?;
        if records == 0 {
            return Ok(values);
        }
    }
}

/// A column of numbers.
fn numbers(reader: ColumnReader, column: &ColumnDescriptor) -> Result<Vec<f64>, String> {
    let is_number = matches!(column.logical_type_ref(), None | Some(LogicalType::Integer { .. }));
    Ok(match (reader, is_unsigned(column)) {
        (ColumnReader::BoolColumnReader(reader), _) => {
            values(reader)?.into_iter().map(|value| f64::from(u8::from(value))).collect()
        }
        (ColumnReader::FloatColumnReader(reader), _) => values(reader)?.into_iter().map(f64::from).collect(),
        (ColumnReader::DoubleColumnReader(reader), _) => values(reader)?,
        (ColumnReader::Int32ColumnReader(reader), Some(false)) if is_number => {
            values(reader)?.into_iter().map(f64::from).collect()
        }
        (ColumnReader::Int32ColumnReader(reader), Some(true)) if is_number => {
            values(reader)?.into_iter().map(|value| f64::from(value as u32)).collect()
        }
        (ColumnReader::Int64ColumnReader(reader), Some(false)) if is_number => {
            values(reader)?.into_iter().map(|value| value as f64).collect()
        }
        (ColumnReader::Int64ColumnReader(reader), Some(true)) if is_number => {
            values(reader)?.into_iter().map(|value| value as u64 as f64).collect()
        }
        _ => return Err(format!("is of {}: expected numbers", described(column))),
    })
}

/// A column of labels, as text.
fn texts(reader: ColumnReader, column: &ColumnDescriptor) -> Result<Vec<String>, String> {
    fn shown<T: ToString>(values: Vec<T>) -> Vec<String> {
        values.iter().map(T::to_string).collect()
    }
    Ok(match (reader, is_unsigned(column)) {
        (ColumnReader::BoolColumnReader(reader), _) => shown(values(reader)?),
        (ColumnReader::FloatColumnReader(reader), _) => shown(values(reader)?),
        (ColumnReader::DoubleColumnReader(reader), _) => shown(values(reader)?),
        (ColumnReader::Int32ColumnReader(reader), Some(true)) => {
            values(reader)?.into_iter().map(|value| (value as u32).to_string()).collect()
        }
        (ColumnReader::Int64ColumnReader(reader), Some(true)) => {
            values(reader)?.into_iter().map(|value| (value as u64).to_string()).collect()
        }
        (ColumnReader::Int32ColumnReader(reader), Some(false)) => shown(values(reader)?),
        (ColumnReader::Int64ColumnReader(reader), Some(false)) => shown(values(reader)?),
        (ColumnReader::ByteArrayColumnReader(reader), _) => {
            let text = |value: &[u8]| String::from_utf8_lossy(value).trim().to_owned();
            values(reader)?.iter().map(|value| text(value.data())).collect()
        }
        _ => return Err(format!("is of {}: expected words or whole numbers", described(column))),
    })
}

/// Whether whole numbers are unsigned; `None` if they stand for something else, such as times.
fn is_unsigned(column: &ColumnDescriptor) -> Option<bool> {
    use ConvertedType::{INT_8, INT_16, INT_32, INT_64, NONE, UINT_8, UINT_16, UINT_32, UINT_64};
    match column.converted_type() {
        UINT_8 | UINT_16 | UINT_32 | UINT_64 => Some(true),
        INT_8 | INT_16 | INT_32 | INT_64 | NONE => Some(false),
        _ => None,
    }
}

fn described(column: &ColumnDescriptor) -> String {
    match column.logical_type_ref() {
        Some(logical) => format!("the type {logical:?}"),
        None => format!("the type {}", column.physical_type()),
    }
}

/// A file that Parquet's reader reads. What a damaged file claims is compared with its length before anything is allocated.
struct Chunks(Arc<ByteFile>);

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.0.length()
    }
}

impl ChunkReader for Chunks {
    type T = BufReader<Reader<Arc<ByteFile>>>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(Reader::new(Arc::clone(&self.0), start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.0.length()) {
            return Err(ParquetError::EOF(format!("{length} bytes from byte {start} on are beyond its end")));
        }
        match self.0.read(start, length) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => Err(ParquetError::External(Box::new(error))),
        }
    }
}

#[cfg(test)]
mod tests;
