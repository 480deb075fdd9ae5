//! Reads Parquet files, a group of rows at a time.

use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, FileReader, Length, RowGroupReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use prost::bytes::Bytes;

use super::{Layout, Names, RowWriter, Table, header, list, names};
use crate::byte_file::{ByteFile, Reader};
use crate::error::DataError;
use crate::source::Options;

/// Values that are decoded at a time.
const BATCH: usize = 8192;

/// Reads the columns that `layout` selects from those that `files` have in common; `path` names these.
///
/// A damaged file may make the library panic, which is an error like others.
pub(super) fn read(
    path: &Path,
    files: &[PathBuf],
    options: &Options,
    layout: impl Fn(&[String]) -> Result<Layout, String>,
) -> Result<Table, DataError> {
    catch_unwind(AssertUnwindSafe(|| filled(path, files, options, layout))).unwrap_or_else(|_| {
        let problem = "is damaged, or of a kind that cannot be read: write it again".to_owned();
        Err(DataError::File { path: path.into(), problem })
    })
}

fn filled(
    path: &Path,
    files: &[PathBuf],
    options: &Options,
    layout: impl Fn(&[String]) -> Result<Layout, String>,
) -> Result<Table, DataError> {
    let mut parts = files.iter().map(|file| Part::open(file));
    let first = parts.next().expect("a name means a file")?;
    let names_of_columns = first.names();
    let layout = header::problem(&names_of_columns).map_or_else(|| layout(&names_of_columns), Err);
    let Layout { features, label } = layout.map_err(|problem| first.refused(problem))?;
    let mut rows = RowWriter::new(path, features.len(), options.in_memory_bytes);
    let mut labels = label.map(|_| Names::default());
    first.read(&features, label, &mut rows, &mut labels)?;
    for part in parts {
        let part = part?;
        if part.names() != names_of_columns {
            let (found, expected) = (list(names(&part.names())), list(names(&names_of_columns)));
            let first = files[0].display();
            return Err(
                part.refused(format!("has the columns {found}: expected {expected}, as in `{first}`"))
            );
        }
        part.read(&features, label, &mut rows, &mut labels)?;
    }
    let name = |column: usize| names_of_columns[column].clone();
    Ok(Table {
        features: features.into_iter().map(name).collect(),
        rows: rows.finish()?,
        label: label.map(name),
        labels,
    })
}

/// One of the files.
struct Part<'a> {
    path: &'a Path,
    reader: SerializedFileReader<Chunks>,
}

impl<'a> Part<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let file = ByteFile::open(path.into())?;
        match SerializedFileReader::new(Chunks(Arc::new(file))) {
            Ok(reader) => Ok(Self { path, reader }),
            Err(error) => {
                let problem = format!("is not a Parquet file, or damaged: {error}");
                Err(DataError::File { path: path.into(), problem })
            }
        }
    }

    fn refused(&self, problem: String) -> DataError {
        DataError::File { path: self.path.into(), problem }
    }

    fn names(&self) -> Vec<String> {
        let columns = self.reader.metadata().file_metadata().schema_descr().columns();
        columns.iter().map(|column| column.path().string()).collect()
    }

    /// Adds the rows to a table.
    fn read(
        &self,
        features: &[usize],
        label: Option<usize>,
        rows: &mut RowWriter,
        labels: &mut Option<Names>,
    ) -> Result<(), DataError> {
        let mut before = 0;
        for group in 0..self.reader.num_row_groups() {
            let group = self.reader.get_row_group(group).map_err(|error| self.refused(error.to_string()))?;
            let count = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
            let columns = features.iter().map(|&column| self.column(&*group, column, count, before, numbers));
            let columns = columns.collect::<Result<Vec<_>, _>>()?;
            let mut row = vec![];
            for place in 0..count {
                row.clear();
                row.extend(columns.iter().map(|column| column[place]));
                rows.push(&row)?;
            }
            if let (Some(column), Some(labels)) = (label, labels.as_mut()) {
                let texts = self.column(&*group, column, count, before, texts)?;
                texts.iter().for_each(|label| labels.push(label));
            }
            before += count;
        }
        Ok(())
    }

    /// The values of a column in a group of so many rows, as `decoded` makes them; errors name the row, of which so many are before.
    fn column<T>(
        &self,
        group: &dyn RowGroupReader,
        column: usize,
        count: usize,
        before: usize,
        decoded: impl Fn(ColumnReader, &ColumnDescriptor) -> Result<Vec<T>, Problem>,
    ) -> Result<Vec<T>, DataError> {
        let descriptor = group.metadata().schema_descr().column(column);
        let of_column = |problem| DataError::Column {
            path: self.path.into(),
            column: descriptor.path().string(),
            problem,
        };
        if descriptor.max_rep_level() > 0 {
            return Err(of_column("has lists: expected one value in every row".into()));
        }
        let chunk = group.metadata().column(column);
        let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
        if start < 0 || chunk.compressed_size() < 0 {
            return Err(of_column("is damaged: its place in the file is negative".into()));
        }
        let reader = group.get_column_reader(column).map_err(|error| of_column(error.to_string()))?;
        let values = decoded(reader, &descriptor).map_err(|problem| match problem {
            Problem::OfColumn(problem) => of_column(problem),
            Problem::OfRow(row, value) => {
                of_column(format!("row {} has {value}: expected a finite 32-bit number", before + row))
            }
        })?;
        match values.len() {
            found if found == count => Ok(values),
            found => Err(of_column(format!("has {found} values in {count} rows: expected one in every row"))),
        }
    }
}

/// What is wrong with a column, or with a row of it.
enum Problem {
    OfColumn(String),
    OfRow(usize, f64),
}

impl From<ParquetError> for Problem {
    fn from(error: ParquetError) -> Self {
        Self::OfColumn(format!("cannot be decoded: {error}"))
    }
}

/// The values of a column, without those that are missing.
fn values<T: DataType>(mut reader: ColumnReaderImpl<T>) -> ParquetResult<Vec<T::T>> {
    let (mut values, mut levels) = (vec![], vec![]);
    loop {
        levels.clear();
        let (records, ..) = reader.read_records(BATCH, Some(&mut levels), None, &mut values)?;
        if records == 0 {
            return Ok(values);
        }
    }
}

/// A column of numbers.
fn numbers(reader: ColumnReader, column: &ColumnDescriptor) -> Result<Vec<f32>, Problem> {
    let is_number = matches!(column.logical_type_ref(), None | Some(LogicalType::Integer { .. }));
    let wide: Vec<f64> = match (reader, is_unsigned(column)) {
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
        _ => return Err(Problem::OfColumn(format!("is of {}: expected numbers", described(column)))),
    };
    let finite = |(row, value): (usize, f64)| {
        let number = value as f32;
        if number.is_finite() { Ok(number) } else { Err(Problem::OfRow(row, value)) }
    };
    wide.into_iter().enumerate().map(finite).collect()
}

/// A column of labels, as text.
fn texts(reader: ColumnReader, column: &ColumnDescriptor) -> Result<Vec<String>, Problem> {
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
        _ => {
            let problem = format!("is of {}: expected words or whole numbers", described(column));
            return Err(Problem::OfColumn(problem));
        }
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
