//! Data sets with samples that are decoded once and kept in a [snapshot](crate::snapshot).

use std::any::Any;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::byte_file::{amount, room};
use crate::snapshot::{FORMAT, Plan, SnapshotOptions};
use crate::{DataError, Dataset, EncodedImages, Kind, Source, Split};

const ABOUT: &str = "snapshot.json";

/// The description in a snapshot's directory, for people who find it.
#[derive(Debug, Serialize, Deserialize)]
struct About {
    source: String,
    format: String,
    samples: usize,
}

/// The snapshot files that were read or written.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotReport {
    /// The directory of this snapshot.
    pub directory: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of samples.
    pub samples: u64,
    /// The number of samples that this process wrote.
    pub written: u64,
    /// The time until all samples were available.
    pub took: Duration,
    /// Other snapshots of this source beside it, of other data or options.
    pub others: Vec<PathBuf>,
}

impl fmt::Display for SnapshotReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directory, bytes, samples, written, took, others } = self;
        write!(f, "samples are read from the snapshot `{}` of {}", directory.display(), amount(*bytes))?;
        if *written > 0 {
            write!(
                f,
                "; {written} of {samples} were written by this process, in {:.1} s",
                took.as_secs_f64()
            )?;
        }
        if let Some(other) = others.first() {
            let more =
                if others.len() > 1 { format!(", and {} more", others.len() - 1) } else { String::new() };
            write!(
                f,
                "; `{}`{more} holds the same source with other data or options: delete those that are not needed",
                other.display()
            )?;
        }
        Ok(())
    }
}

impl Dataset {
    /// Returns the data set with images read from a snapshot. It holds them decoded and of one size, work that every epoch would repeat. Writes its
    /// missing part, together with other processes that do the same. Augmentation follows the snapshot, so batches have the same bits.
    ///
    /// A snapshot belongs to one state of the source and one set of options. For others, another snapshot is written beside it.
    ///
    /// # Errors
    /// If no images stay in their files, there is not enough space, a file cannot be written, or an image is damaged and may not be
    /// [skipped](crate::OnBadSample).
    pub fn with_snapshot(
        self,
        source: &Source,
        options: &SnapshotOptions,
    ) -> Result<(Self, SnapshotReport), DataError> {
        let encoded = |split| (split as &dyn Any).downcast_ref::<EncodedImages>();
        let Some((train, test)) = encoded(&*self.train).zip(encoded(&*self.test)) else {
            return Err(DataError::other(format!(
                "a snapshot of {source} would have no effect: its samples are not decoded in every epoch"
            )));
        };
        let key = key(&self.kind, [train, test], options)?;
        let directory = options.directory.join(&key);
        let plan = |name, images: &EncodedImages| Plan {
            directory: &directory,
            name,
            key: &key,
            compression: options.compression,
            records: images.len(),
            record_bytes: images.record_bytes(),
        };
        let (of_train, of_test) = (plan("train", train), plan("test", test));
        fs::create_dir_all(&directory).map_err(DataError::write(&directory))?;
        check_room(&directory, of_train.missing_bytes() + of_test.missing_bytes())?;
        let samples = train.len() + test.len();
        let began = Instant::now();
        let (train, of_train) = train.read_from(&of_train)?;
        let (test, of_test) = test.read_from(&of_test)?;
        let took = began.elapsed();
        let about = About { source: source.to_string(), format: FORMAT.to_owned(), samples };
        write_about(&directory, &about)?;
        let report = SnapshotReport {
            bytes: of_train.bytes() + of_test.bytes(),
            samples: samples as u64,
            written: of_train.written + of_test.written,
            took,
            others: others(&options.directory, &directory, &about.source),
            directory,
        };
        Ok((Self { train: Arc::new(train), test: Arc::new(test), ..self }, report))
    }
}

/// Returns a hash of everything that determines the records of a snapshot.
fn key(kind: &Kind, splits: [&EncodedImages; 2], options: &SnapshotOptions) -> Result<String, DataError> {
    let mut hasher = Xxh3::new();
    hasher.update(FORMAT.as_bytes());
    hasher.update(&serde_json::to_vec(kind).expect("words and numbers"));
    hasher.update(options.compression.to_string().as_bytes());
    splits.iter().try_for_each(|split| split.hash_state(&mut hasher))?;
    Ok(format!("{:016x}", hasher.digest()))
}

fn check_room(directory: &Path, bytes: u64) -> Result<(), DataError> {
    let [free, _] = File::open(directory).and_then(room).map_err(DataError::write(directory))?;
    if bytes <= free {
        return Ok(());
    }
    let problem = format!(
        "a snapshot needs up to {} here, and {} are free: choose another directory, smaller images, or none",
        amount(bytes),
        amount(free)
    );
    Err(DataError::file(directory, problem))
}

/// Describes a new snapshot. Another user, or another spelling of the source, changes no existing description: the directory may be read-only.
fn write_about(directory: &Path, about: &About) -> Result<(), DataError> {
    let path = directory.join(ABOUT);
    if read(&path).is_some() {
        return Ok(());
    }
    let text = serde_json::to_vec_pretty(about).expect("words and numbers");
    fs::write(&path, text).map_err(DataError::write(&path))
}

fn read(path: &Path) -> Option<About> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn others(all: &Path, own: &Path, source: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(all).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_other =
        |path: &PathBuf| path != own && read(&path.join(ABOUT)).is_some_and(|about| about.source == source);
    let mut others: Vec<_> = entries.filter(is_other).collect();
    others.sort();
    others
}

#[cfg(test)]
mod tests;
