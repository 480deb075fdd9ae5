//! Sharding of sample files across ranks.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use super::Pipeline;
use crate::error::DataError;

/// The maximum percentage above the mean that a rank may read for [`Sharding::Auto`] to divide files.
const MOST_ABOVE_MEAN_PERCENT: u64 = 10;

/// The part of a stream of samples in files that each rank reads.
///
/// Data with random access need no sharding: each rank reads only its share of the common [order](crate::Split::order).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharding {
    /// [`File`](Self::File) if no rank would read over 10 % more than the mean, otherwise [`Data`](Self::Data).
    #[default]
    Auto,
    /// Each rank reads its own files, of similar total size. Ranks may have different numbers of samples.
    File,
    /// Every rank reads all files, and keeps every n-th sample.
    Data,
    /// Every rank reads and keeps everything.
    Off,
}

/// The [share](Sharding::of) of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The files that the rank reads, in their order.
    pub files: Vec<PathBuf>,
    /// The rank and the number of ranks, among those that read the same files and divide their samples.
    kept: (usize, usize),
    /// The choice and its reason, as text.
    description: String,
}

impl Sharding {
    /// Returns the share of `rank` among `ranks`. All ranks must pass the same files, of the same sizes.
    ///
    /// ```no_run
    /// use unisono_data::pipeline::Sharding;
    /// use unisono_data::{DataError, Pipeline};
    ///
    /// # fn read(_: std::path::PathBuf) -> Result<Pipeline<u64>, DataError> { todo!() }
    /// # fn main() -> Result<(), DataError> {
    /// let files = ["a.tfrecord", "b.tfrecord"].map(Into::into);
    /// let shard = Sharding::Auto.of(&files, 0, 2)?;
    /// println!("{shard}"); // files: each of 2 ranks reads files of its own, at most 3 % more than the mean
    /// let samples = shard.keep(Pipeline::of(shard.files.clone()).interleave(4, read));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the size of a file cannot be read, or there are too few files for [`File`](Self::File).
    ///
    /// # Panics
    /// If `rank` is not below `ranks`.
    pub fn of(self, files: &[PathBuf], rank: usize, ranks: usize) -> Result<Shard, DataError> {
        assert!(rank < ranks, "rank {rank} of {ranks} ranks");
        let count = files.len();
        let whole = |kept, description| Ok(Shard { files: files.to_vec(), kept, description });
        let by_data = |why: String| {
            let choice = format!("data: every rank reads all files and keeps one sample in {ranks}: {why}");
            whole((rank, ranks), choice)
        };
        let (owners, above) = match self {
            Self::Off => return whole((0, 1), "off: every rank reads and keeps all samples".to_owned()),
            Self::Data => return by_data("as asked".to_owned()),
            Self::Auto if count < ranks => return by_data(format!("{count} file(s) are too few to divide")),
            Self::File if count < ranks => {
                return Err(DataError::other(format!(
                    "{count} file(s) cannot be divided among {ranks} ranks: expected a file for each, or sharding by data"
                )));
            }
            Self::Auto | Self::File => divided(files, ranks)?,
        };
        if self == Self::Auto && above > MOST_ABOVE_MEAN_PERCENT {
            let why = format!("with files of its own, a rank would read {above} % more than the mean");
            return by_data(why);
        }
        let own = files.iter().zip(&owners).filter(|&(_, &owner)| owner == rank);
        let files = own.map(|(file, _)| file.clone()).collect();
        let description = format!(
            "files: each of {ranks} ranks reads files of its own, at most {above} % more than the mean"
        );
        Ok(Shard { files, kept: (0, 1), description })
    }
}

impl Shard {
    /// Returns the samples that the rank keeps of its files. Their order is the same on all ranks that read the same files.
    pub fn keep<T: Send + 'static>(&self, samples: Pipeline<T>) -> Pipeline<T> {
        let (rank, ranks) = self.kept;
        samples.shard(rank, ranks)
    }
}

/// Formats the choice and its reason.
impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

/// Divides files among ranks: the largest remaining file goes to the rank with the fewest bytes (R. L. Graham, Bounds on Multiprocessing Timing
/// Anomalies, 1969). Returns the rank of each file, and the percentage by which the largest share exceeds the mean, rounded up.
fn divided(files: &[PathBuf], ranks: usize) -> Result<(Vec<usize>, u64), DataError> {
    let size = |path: &PathBuf| fs::metadata(path).map(|found| found.len()).map_err(DataError::read(path));
    let sizes = files.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let mut largest_first: Vec<_> = (0..files.len()).collect();
    largest_first.sort_by_key(|&file| std::cmp::Reverse(sizes[file]));
    // The bytes and the files of each rank. Among ranks with equally many bytes, the one with the fewest files is next, so that every rank has one.
    let (mut owners, mut loads) = (vec![0; files.len()], vec![(0_u64, 0_u64); ranks]);
    for file in largest_first {
        let owner = (0..ranks).min_by_key(|&rank| loads[rank]).expect("there are ranks");
        owners[file] = owner;
        loads[owner] = (loads[owner].0 + sizes[file], loads[owner].1 + 1);
    }
    let (most, sum) = (loads.iter().map(|load| load.0).max().unwrap_or(0), sizes.iter().sum::<u64>());
    let above_mean = (100 * most * ranks as u64).div_ceil(sum.max(1)).saturating_sub(100);
    Ok((owners, above_mean))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::TestDirectory;

    /// Writes files of these sizes.
    fn files(directory: &TestDirectory, sizes: &[usize]) -> Vec<PathBuf> {
        let file = |(number, &size): (usize, &usize)| directory.file(&number.to_string(), vec![0; size]);
        sizes.iter().enumerate().map(file).collect()
    }

    /// Returns the samples of a rank: every byte of its files, as the file and the offset.
    fn seen(shard: &Shard) -> Vec<(PathBuf, u64)> {
        let bytes = |file: PathBuf| {
            let size = fs::metadata(&file).unwrap().len();
            Ok(Pipeline::of((0..size).map(move |place| (file.clone(), place))))
        };
        let samples = Pipeline::of(shard.files.clone()).interleave(2, bytes);
        shard.keep(samples).collect::<Result<_, DataError>>().unwrap()
    }

    #[test]
    fn every_sample_is_read_by_one_rank() {
        let directory = TestDirectory::new();
        for sizes in [&[5, 3, 9, 1][..], &[4, 4, 4, 4, 4, 4], &[7], &[0, 0, 6, 0]] {
            let (files, all_bytes) = (files(&directory, sizes), sizes.iter().sum::<usize>());
            for (sharding, ranks) in
                [(Sharding::Auto, 2), (Sharding::Auto, 3), (Sharding::File, 3), (Sharding::Data, 3)]
            {
                let shards = (0..ranks).map(|rank| sharding.of(&files, rank, ranks));
                let Ok(shards) = shards.collect::<Result<Vec<_>, _>>() else {
                    assert!(sharding == Sharding::File && files.len() < ranks);
                    continue;
                };
                let all: Vec<_> = shards.iter().flat_map(seen).collect();
                assert_eq!(all.len(), all_bytes, "{sharding:?}, {ranks} ranks");
                assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), all_bytes);
                assert!(shards.iter().all(|shard| shard.to_string() == shards[0].to_string()));
            }
            for rank in 0..2 {
                assert_eq!(seen(&Sharding::Off.of(&files, rank, 2).unwrap()).len(), all_bytes);
            }
        }
    }

    #[test]
    fn auto_divides_balanced_files_and_reports_the_reason() {
        let directory = TestDirectory::new();
        let description = |sizes: &[usize], ranks| {
            Sharding::Auto.of(&files(&directory, sizes), 0, ranks).unwrap().to_string()
        };
        let expected = "files: each of 2 ranks reads files of its own, at most 6 % more than the mean";
        assert_eq!(description(&[50, 50, 40, 50], 2), expected);
        let expected = "data: every rank reads all files and keeps one sample in 2: with files of its own, a rank would read 34 % more than the mean";
        assert_eq!(description(&[50, 50, 50], 2), expected);
        let expected =
            "data: every rank reads all files and keeps one sample in 4: 3 file(s) are too few to divide";
        assert_eq!(description(&[50, 50, 50], 4), expected);
    }

    #[test]
    fn files_that_cannot_be_divided_are_refused() {
        let directory = TestDirectory::new();
        let message = Sharding::File.of(&files(&directory, &[1]), 0, 2).unwrap_err().to_string();
        assert!(
            message.starts_with("1 file(s) cannot be divided among 2 ranks: expected a file"),
            "{message}"
        );
        let missing = [directory.path().join("none"), directory.path().join("either")];
        assert!(Sharding::File.of(&missing, 0, 2).unwrap_err().to_string().contains("none"));
    }
}
