//! Snapshots of pipelines: elements that are made once, and read in every epoch and run.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use super::shard::{self, Shard};
use super::{FORMAT, SHARD_BYTES, Snapshot, SnapshotOptions};
use crate::error::DataError;
use crate::once::make_all;
use crate::pipeline::Pipeline;
use crate::random::{ORDER, keyed_rng};

/// A line of the list of a snapshot's shards, which is finished when they all are.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// A shard of this many elements.
    Shard { elements: usize },
    /// The end, and the number of shards.
    End { shards: usize },
}

/// The elements of a [pipeline](Pipeline::snapshot) on disk. Copies share them.
#[derive(Debug, Clone)]
pub struct Snapshotted(Arc<Snapshot>);

impl Pipeline<Vec<u8>> {
    /// Elements that are kept on disk, in files of the directory whose names begin with `key`. If they are not there, `make` makes the
    /// pipeline, which is read to its end; of several processes that call this at once, one does.
    ///
    /// `key` names all that the elements follow from: if that changes, so must the key. What is damaged or half written is made anew.
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
    ///
    /// An error of the pipeline, or if a file cannot be written.
    pub fn snapshot(
        options: &SnapshotOptions,
        key: &str,
        make: impl FnOnce() -> Result<Self, DataError>,
    ) -> Result<Snapshotted, DataError> {
        let directory = &options.directory;
        fs::create_dir_all(directory).map_err(DataError::write(directory))?;
        let identity = format!("{FORMAT} {key}");
        let list = [directory.join(format!("{key}.jsonl"))];
        let make = RefCell::new(Some(make));
        let write = |_: usize, file: &mut File| {
            let elements = make.take().expect("there is one list")()?;
            write(options, key, &identity, file, elements)
        };
        let open = |_: usize, path: &Path| open(path, directory, key, &identity);
        let found = make_all(&list, open, write)?.pop().expect("there is one list");
        Ok(Snapshotted(Arc::new(found)))
    }
}

impl Snapshotted {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.0.records
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements in their order.
    pub fn elements(&self) -> Pipeline<Vec<u8>> {
        self.in_order((0..self.len()).collect())
    }

    /// Returns the elements of an epoch: all of them, in an order that the seed determines.
    pub fn shuffled(&self, seed: u64, epoch: u64) -> Pipeline<Vec<u8>> {
        let mut order: Vec<_> = (0..self.len()).collect();
        order.shuffle(&mut keyed_rng(seed, ORDER, epoch));
        self.in_order(order)
    }

    fn in_order(&self, order: Vec<usize>) -> Pipeline<Vec<u8>> {
        let snapshot = Arc::clone(&self.0);
        Pipeline::new(order.into_iter().map(move |index| Ok(snapshot.record(index)?.into_owned())))
    }
}

/// Writes shards, and the list of them: a line when a shard is there, so that others see that this process goes on.
fn write(
    options: &SnapshotOptions,
    key: &str,
    identity: &str,
    list: &mut File,
    elements: Pipeline<Vec<u8>>,
) -> Result<(), DataError> {
    let SnapshotOptions { directory, compression } = options;
    let path_of_list = directory.join(format!("{key}.jsonl"));
    let mut line = |line: &Line| {
        let text = serde_json::to_string(line).expect("numbers") + "\n";
        list.write_all(text.as_bytes()).map_err(DataError::write(&path_of_list))
    };
    let mut shards = 0;
    let mut shard = |elements: &[Vec<u8>]| {
        let path = path_of(directory, key, shards);
        // Not over a file that another process may have mapped.
        let part = path.with_extension("part");
        let write = || {
            let mut file = File::create(&part)?;
            shard::write(&mut file, identity, *compression, elements)?;
            file.sync_all()?;
            fs::rename(&part, &path)
        };
        write().map_err(DataError::write(&path))?;
        shards += 1;
        line(&Line::Shard { elements: elements.len() })
    };
    let (mut held, mut bytes) = (Vec::new(), 0);
    for element in elements {
        let element = element?;
        bytes += element.len();
        held.push(element);
        if bytes >= SHARD_BYTES {
            shard(&std::mem::take(&mut held))?;
            bytes = 0;
        }
    }
    if !held.is_empty() {
        shard(&held)?;
    }
    line(&Line::End { shards })
}

fn path_of(directory: &Path, key: &str, shard: usize) -> PathBuf {
    directory.join(format!("{key}-{shard:05}.safetensors"))
}

/// Returns the snapshot of a list that is whole, and whose shards are.
fn open(list: &Path, directory: &Path, key: &str, identity: &str) -> Option<Snapshot> {
    let text = fs::read_to_string(list).ok()?;
    let lines: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).ok()).collect::<Option<_>>()?;
    let (Line::End { shards: count }, lines) = lines.split_last()? else { return None };
    let (mut shards, mut starts, mut records) = (vec![], vec![], 0);
    for (number, line) in lines.iter().enumerate() {
        let Line::Shard { elements } = line else { return None };
        let path = path_of(directory, key, number);
        match Shard::open(&path, identity, *elements) {
            Ok(shard) => shards.push(shard),
            Err(problem) => {
                tracing::warn!("`{}` {problem}; the snapshot is written anew", path.display());
                return None;
            }
        }
        starts.push(records);
        records += elements;
    }
    (shards.len() == *count).then(|| Snapshot { directory: directory.into(), shards, starts, records })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    fn options(directory: &Path) -> SnapshotOptions {
        SnapshotOptions { directory: directory.into(), compression: crate::Compression::Lz4 }
    }

    /// Elements of up to a tenth of a shard, so that there are several shards.
    fn element(number: usize) -> Vec<u8> {
        vec![number as u8; 1 + number % 7 * (SHARD_BYTES / 60)]
    }

    fn elements(count: usize) -> Pipeline<Vec<u8>> {
        Pipeline::of((0..count).map(element))
    }

    #[test]
    fn one_process_makes_the_elements_and_all_read_them() {
        let (folder, made) = (tempfile::tempdir().unwrap(), AtomicU64::new(0));
        let make = || {
            made.fetch_add(1, Ordering::Relaxed);
            Ok(elements(60))
        };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let kept = Pipeline::snapshot(&options(folder.path()), "a", make).unwrap();
                    assert_eq!(kept.len(), 60);
                    assert!(kept.elements().flatten().eq((0..60).map(element)));
                    let mut shuffled: Vec<_> = kept.shuffled(1, 2).flatten().collect();
                    assert_ne!(shuffled[..9], (0..9).map(element).collect::<Vec<_>>()[..]);
                    shuffled.sort();
                    let mut sorted: Vec<_> = (0..60).map(element).collect();
                    sorted.sort();
                    assert_eq!(shuffled, sorted);
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
        let shards = fs::read_dir(folder.path()).unwrap().count() - 1;
        assert!(shards >= 2, "{shards}");
    }

    #[test]
    fn what_is_half_written_or_damaged_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let fail = || Ok(elements(60).take(50).map_last_to_an_error());
        assert!(Pipeline::snapshot(&options(folder.path()), "a", fail).is_err());
        let keep =
            |count| Pipeline::snapshot(&options(folder.path()), "a", move || Ok(elements(count))).unwrap();
        assert_eq!(keep(60).len(), 60);
        assert_eq!(keep(5).len(), 60, "it is there");
        fs::write(path_of(folder.path(), "a", 0), "damaged").unwrap();
        assert_eq!(keep(5).len(), 5);
        let other = Pipeline::snapshot(&options(folder.path()), "b", || Ok(elements(3))).unwrap();
        assert_eq!((other.len(), keep(9).len()), (3, 5));
    }

    impl Pipeline<Vec<u8>> {
        fn map_last_to_an_error(self) -> Self {
            let mut count = 0;
            Self::new(Iterator::map(self, move |element| {
                count += 1;
                if count == 50 { Err(DataError::other("no more")) } else { element }
            }))
        }
    }
}
