//! Snapshots: the elements of a pipeline, made once instead of in every epoch, and kept on disk.
//!
//! A snapshot is a directory of [shards](shard), which all processes of a machine map, so its bytes are in memory once. Processes that start together
//! write it together, a shard each. A shard is [complete or missing](crate::once), never partial.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use crate::once::make_all;
use crate::{DataError, Pipeline, order};

mod shard;

use shard::Shard;

/// Part of the key of every snapshot. It changes with the content and the format of records.
pub(crate) const FORMAT: &str = concat!(env!("CARGO_PKG_VERSION"), " snapshot 3");

/// The size of a shard in bytes before compression: small enough to share shards among processes, and large enough for efficient reads.
const SHARD_BYTES: usize = 16 << 20;
/// The number of shards of a small snapshot.
const FEW_SHARDS: usize = 16;

/// The location and the format of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// The directory, which may hold snapshots of several data sets; created if missing.
    pub directory: PathBuf,
    /// The storage format of records.
    pub compression: Compression,
}

/// The storage formats of a snapshot's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Uncompressed: fastest to read.
    #[default]
    None,
    /// LZ4, each record separately: for images with uniform areas, and for slow disks.
    Lz4,
}

impl Compression {
    fn packed(self, record: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::None => record.into(),
            Self::Lz4 => lz4_flex::compress_prepend_size(record).into(),
        }
    }

    fn unpacked(self, stored: &[u8]) -> Option<Cow<'_, [u8]>> {
        match self {
            Self::None => Some(stored.into()),
            Self::Lz4 => lz4_flex::decompress_size_prepended(stored).ok().map(Cow::from),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
        })
    }
}

impl FromStr for Compression {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        match name {
            "none" => Ok(Self::None),
            "lz4" => Ok(Self::Lz4),
            _ => Err(DataError::other(format!("unknown compression `{name}`: expected `none` or `lz4`"))),
        }
    }
}

/// The content of a snapshot: records by number, each of which can be made independently.
pub(crate) struct Plan<'a> {
    pub(crate) directory: &'a Path,
    /// The prefix of the files' names.
    pub(crate) name: &'static str,
    /// The hash of everything that determines the records. Shards with another key are not read.
    pub(crate) key: &'a str,
    pub(crate) compression: Compression,
    pub(crate) records: usize,
    /// The size of most records in bytes.
    pub(crate) record_bytes: usize,
}

/// Records on disk, by number.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) directory: PathBuf,
    shards: Vec<Shard>,
    /// The number of records in each shard but the last.
    per_shard: usize,
    /// The number of records that this process wrote.
    pub(crate) written: u64,
}

impl Plan<'_> {
    fn per_shard(&self) -> usize {
        let most = SHARD_BYTES.div_ceil(self.record_bytes.max(1));
        self.records.div_ceil(FEW_SHARDS).clamp(1, most)
    }

    fn paths(&self) -> Vec<PathBuf> {
        let count = self.records.div_ceil(self.per_shard());
        let name = |shard| format!("{}-{shard:05}-of-{count:05}.safetensors", self.name);
        (0..count).map(|shard| self.directory.join(name(shard))).collect()
    }

    fn of_shard(&self, shard: usize) -> Range<usize> {
        let first = shard * self.per_shard();
        first..self.records.min(first + self.per_shard())
    }

    /// Returns an upper bound of the bytes still to write.
    pub(crate) fn missing_bytes(&self) -> u64 {
        let of_record = (self.record_bytes + 2 * size_of::<u64>()) as u64;
        let paths = self.paths();
        let missing = paths.iter().enumerate().filter(|(_, path)| !path.exists());
        missing.map(|(shard, _)| self.of_shard(shard).len() as u64 * of_record).sum()
    }

    /// Writes missing and damaged shards, together with other processes that do the same, and opens all.
    pub(crate) fn make(
        &self,
        make: impl Fn(usize) -> Result<Vec<u8>, DataError> + Sync,
    ) -> Result<Snapshot, DataError> {
        let (written, paths) = (AtomicU64::new(0), self.paths());
        let shards = make_all(
            &paths,
            |shard, path| Shard::found(path, self.key, Some(self.of_shard(shard).len())),
            |shard, file| {
                let records: Vec<_> =
                    self.of_shard(shard).into_par_iter().map(&make).collect::<Result<_, _>>()?;
                written.fetch_add(records.len() as u64, Ordering::Relaxed);
                let about = (self.key, self.compression);
                shard::write(file, &paths[shard], about, records.into_iter().map(Ok))
            },
        )?;
        let (directory, per_shard) = (self.directory.to_owned(), self.per_shard());
        Ok(Snapshot { directory, shards, per_shard, written: written.into_inner() })
    }
}

impl Snapshot {
    pub(crate) fn record(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        self.shards[index / self.per_shard].record(index % self.per_shard)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(Shard::size).sum()
    }
}

/// The elements of a [pipeline](Pipeline::snapshot) on disk. Clones share them.
#[derive(Debug, Clone)]
pub struct Snapshotted(Arc<Shard>);

impl Pipeline<Vec<u8>> {
    /// Returns elements that are kept on disk, in a file of the directory whose name begins with `key`. If it does not exist, `make` builds the
    /// pipeline, which is read to its end. Of several processes that call this concurrently, one does so.
    ///
    /// `key` must change with everything that determines the elements. Damaged and partial files are made anew.
    ///
    /// ```
    /// use unisono_data::{Compression, DataError, Pipeline, SnapshotOptions, Threads};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// let options = SnapshotOptions { directory: directory.path().into(), compression: Compression::Lz4 };
    /// let slow = || Ok(Pipeline::of(0..5_u32).map(Threads::Auto, |number| Ok(number.pow(2).to_le_bytes().to_vec())));
    /// let squares = Pipeline::snapshot(&options, "squares-1", slow)?;
    /// let epochs = Pipeline::repeat(0..2, move |epoch| Ok(squares.shuffled(7, epoch)));
    /// assert_eq!(epochs.count(), 10);
    /// # Ok::<(), DataError>(())
    /// ```
    ///
    /// # Errors
    /// An error of the pipeline, or if a file cannot be written.
    pub fn snapshot(
        options: &SnapshotOptions,
        key: &str,
        make: impl FnOnce() -> Result<Self, DataError>,
    ) -> Result<Snapshotted, DataError> {
        let SnapshotOptions { directory, compression } = options;
        fs::create_dir_all(directory).map_err(DataError::write(directory))?;
        let identity = format!("{FORMAT} {key}");
        let path = directory.join(format!("{key}.safetensors"));
        let make = RefCell::new(Some(make));
        let write = |_: usize, file: &mut File| {
            let elements = make.take().expect("there is one file")()?;
            shard::write(file, &path, (&identity, *compression), elements)
        };
        let open = |_: usize, path: &Path| Shard::found(path, &identity, None);
        let found = make_all(std::slice::from_ref(&path), open, write)?.pop().expect("there is one file");
        Ok(Snapshotted(Arc::new(found)))
    }
}

impl Snapshotted {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements in their order.
    pub fn elements(&self) -> Pipeline<Vec<u8>> {
        self.in_order((0..self.len()).collect())
    }

    /// Returns the elements of an epoch: all of them, in an order that the seed determines.
    pub fn shuffled(&self, seed: u64, epoch: u64) -> Pipeline<Vec<u8>> {
        self.in_order(order(self.len(), seed, epoch))
    }

    fn in_order(&self, order: Vec<usize>) -> Pipeline<Vec<u8>> {
        let elements = Arc::clone(&self.0);
        Pipeline::new(order.into_iter().map(move |index| Ok(elements.record(index)?.into_owned())))
    }
}

#[cfg(test)]
mod tests;
