//! A shard of a snapshot: a file of records, mapped into memory.
//!
//! It is a safetensors file of three tensors: `records` (bytes, one record after the other), `ends` (the end of each record, in bytes) and
//! `checksums` (the XXH3 of each record). So other programs can read it, and the header determines the length of the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use xxhash_rust::xxh3::xxh3_64;

use super::Compression;
use crate::error::DataError;

/// The interval at which written records are flushed. Processes that wait for a file observe its length, and fail if it stays the same for long.
pub(super) const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

/// A shard whose header fits its length. The records are checked when they are read.
#[derive(Debug)]
pub(super) struct Shard {
    path: PathBuf,
    bytes: Mmap,
    /// The position of the records in the file.
    records: Range<usize>,
    ends: Vec<u64>,
    checksums: Vec<u64>,
    compression: Compression,
}

/// Writes a shard of these records, which need not be in memory at once: the header is written last.
pub(super) fn write(
    file: &mut File,
    path: &Path,
    (key, compression): (&str, Compression),
    records: impl IntoIterator<Item = Result<Vec<u8>, DataError>>,
) -> Result<(), DataError> {
    let unwritten = DataError::write(path);
    let mut file = BufWriter::new(file);
    // The header has three tensors and the key, in which each character may be escaped.
    let header_bytes = (1024 + 6 * key.len()).next_multiple_of(8);
    file.write_all(&vec![0; header_bytes]).map_err(unwritten)?;
    let (mut bytes, mut ends, mut checksums) = (0, Vec::new(), Vec::new());
    let mut flushed = Instant::now();
    for record in records {
        let record = record?;
        let record = compression.packed(&record);
        file.write_all(&record).map_err(unwritten)?;
        bytes += record.len();
        ends.extend((bytes as u64).to_le_bytes());
        checksums.extend(xxh3_64(&record).to_le_bytes());
        if flushed.elapsed() >= FLUSH_INTERVAL {
            file.flush().map_err(unwritten)?;
            flushed = Instant::now();
        }
    }
    let mut header = header(key, compression, bytes, ends.len());
    assert!(header.len() + size_of::<u64>() <= header_bytes, "the header of {key:?} is longer than expected");
    header.resize(header_bytes - size_of::<u64>(), b' ');
    let finish = || {
        file.write_all(&[ends, checksums].concat())?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        file.flush()
    };
    finish().map_err(unwritten)
}

/// Returns the header of a shard with this many bytes of records, of ends, and of checksums.
fn header(key: &str, compression: Compression, records: usize, numbers: usize) -> Vec<u8> {
    let mut end = 0;
    let tensors =
        [("records", Dtype::U8, records), ("ends", Dtype::U64, numbers), ("checksums", Dtype::U64, numbers)];
    let tensors = tensors.map(|(name, dtype, bytes)| {
        let start = end;
        end += bytes;
        let shape = vec![8 * bytes / dtype.bitsize()];
        (name.to_owned(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let about = [("key", key.to_owned()), ("compression", compression.to_string())];
    let about = about.map(|(name, value)| (name.to_owned(), value));
    let header = Metadata::new(Some(HashMap::from(about)), tensors.into());
    serde_json::to_vec(&header.expect("each begins where the one before ends")).expect("names and numbers")
}

impl Shard {
    pub(super) fn found(path: &Path, key: &str, count: Option<usize>) -> Option<Self> {
        let file = match File::open(path) {
            // Another rank may rename the file into place right after this.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            file => file.map_err(|error| error.to_string()),
        };
        let opened = file.and_then(|file| Self::open(path, &file, key, count)).inspect_err(|problem| {
            tracing::warn!("`{}` {problem}; it is written anew", path.display());
        });
        opened.ok()
    }

    /// Opens the shard, which has this many records if that is known; the error describes the problem.
    #[allow(unsafe_code)]
    fn open(path: &Path, file: &File, key: &str, count: Option<usize>) -> Result<Self, String> {
        // SAFETY: no process writes to a mapped shard. Only `write` makes one, under another name, which then replaces this file as a whole, so the
        // mapped content stays. A user who truncates the file ends the process by a signal, as with any mapped file.
        let bytes = unsafe { Mmap::map(file) }.map_err(|error| error.to_string())?;
        let damaged = |error: safetensors::SafeTensorError| format!("is damaged: {error}");
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
        let about = |name: &str| header.metadata().as_ref()?.get(name).cloned();
        if about("key").as_deref() != Some(key) {
            return Err("belongs to another snapshot".to_owned());
        }
        let compression = about("compression").and_then(|name| name.parse().ok());
        let compression = compression.ok_or("names no compression that is known")?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(damaged)?;
        let tensor = |name: &str| tensors.tensor(name).map_err(damaged);
        let numbers = |name: &str| -> Result<Vec<u64>, String> {
            let words = tensor(name)?.data().chunks_exact(size_of::<u64>());
            Ok(words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect())
        };
        let (ends, checksums) = (numbers("ends")?, numbers("checksums")?);
        let records = tensor("records")?.data();
        let start = records.as_ptr().addr() - bytes.as_ptr().addr();
        let records = start..start + records.len();
        let fits = ends.is_sorted() && ends.last().is_none_or(|&end| end == records.len() as u64);
        let count = count.unwrap_or(ends.len());
        if !fits || ends.len() != count || checksums.len() != count {
            return Err(format!("has {} records: expected {count}", ends.len()));
        }
        Ok(Self { path: path.into(), bytes, records, ends, checksums, compression })
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn record(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        let stored = &self.bytes[self.records.clone()][start as usize..self.ends[index] as usize];
        let unpacked = (xxh3_64(stored) == self.checksums[index]).then(|| self.compression.unpacked(stored));
        unpacked.flatten().ok_or_else(|| {
            let problem = format!("record {index} is damaged: delete the file, and it is written anew");
            // Not `DataError::File`: the sample itself is intact, and must not be skipped.
            DataError::read(&self.path)(io::Error::new(io::ErrorKind::InvalidData, problem))
        })
    }
}
