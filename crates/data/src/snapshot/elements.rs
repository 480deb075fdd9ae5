//! Snapshots of pipelines: elements that are made once, and read in every epoch and run.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::shard::{self, Shard};
use super::{FORMAT, SnapshotOptions};
use crate::error::DataError;
use crate::once::make_all;
use crate::pipeline::Pipeline;
use crate::split::order;

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
    ///
    /// An error of the pipeline, or if a file cannot be written.
    pub fn snapshot(
        options: &SnapshotOptions,
        key: &str,
        make: impl FnOnce() -> Result<Self, DataError>,
    ) -> Result<Snapshotted, DataError> {
        let SnapshotOptions { directory, compression } = options;
        fs::create_dir_all(directory).map_err(DataError::write(directory))?;
        let identity = format!("{FORMAT} {key}");
        let path = path_of(directory, key);
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

fn path_of(directory: &Path, key: &str) -> PathBuf {
    directory.join(format!("{key}.safetensors"))
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
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    fn options(directory: &Path) -> SnapshotOptions {
        SnapshotOptions { directory: directory.into(), compression: crate::Compression::Lz4 }
    }

    fn element(number: usize) -> Vec<u8> {
        vec![number as u8; number % 7 * (256 << 10)]
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
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn partial_and_damaged_files_are_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let fail = || Ok(elements(60).take(50).map_last_to_an_error());
        assert!(Pipeline::snapshot(&options(folder.path()), "a", fail).is_err());
        let keep =
            |count| Pipeline::snapshot(&options(folder.path()), "a", move || Ok(elements(count))).unwrap();
        assert_eq!(keep(60).len(), 60);
        assert_eq!(keep(5).len(), 60, "it is there");
        fs::write(path_of(folder.path(), "a"), "damaged").unwrap();
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
