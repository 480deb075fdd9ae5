//! Reads Parquet files, a batch of rows at a time.

use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};
use prost::bytes::Bytes;

use super::Filling;
use super::batches::undecodable;
use crate::byte_file::{ByteFile, Reader};
use crate::error::DataError;

pub(super) fn read(path: &Path, table: &mut Filling) -> Result<(), DataError> {
    let file = Chunks(Arc::new(ByteFile::open(path.into())?));
    // Parquet's own types suffice.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let reader = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options)
        .map_err(|error| DataError::file(path, format!("is not a Parquet file, or damaged: {error}")))?;
    let used = table.begin_batches(path, reader.schema())?;
    let columns = ProjectionMask::roots(reader.parquet_schema(), used.iter().copied());
    let batches = reader.with_projection(columns).build().map_err(|error| undecodable(path, 0, &error))?;
    let mut before = 0;
    for batch in batches {
        let batch = batch.map_err(|error| undecodable(path, before, &error))?;
        table.push_batch(path, before, &used, &batch)?;
        before += batch.num_rows();
    }
    Ok(())
}

/// A file for Parquet's reader. Sizes in a damaged file are validated against its length before anything is allocated.
struct Chunks(Arc<ByteFile>);

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.0.length
    }
}

impl ChunkReader for Chunks {
    type T = BufReader<Reader<Arc<ByteFile>>>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(Reader::new(Arc::clone(&self.0), start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.0.length) {
            return Err(ParquetError::EOF(format!("{length} bytes from byte {start} on are beyond its end")));
        }
        self.0.read(start, length).map(Bytes::from).map_err(|error| ParquetError::External(error.into()))
    }
}

#[cfg(test)]
mod tests;
