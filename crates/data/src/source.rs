//! Sources of data sets, and options for loading them.

use std::fmt;
use std::fs::canonicalize;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::address::Service;
use crate::augment::{Affine, Augmentation, Crop, Mirror};
use crate::bad::OnBadSample;
use crate::cache::Cache;
use crate::error::DataError;
use crate::files;
use crate::normalization::Normalize;
use crate::stop::Stop;

/// The source of a data set.
///
/// With the feature `remote`, a path may also be a URL: `s3://BUCKET/FOLDER_OR_OBJECT`, or `https://HOST/OBJECT` for a source that is a single file.
///
/// Sources of *files* accept several: separated by commas, or by patterns such as `train-*.csv` and `train-{000..119}.tar`. A list keeps its order,
/// and the matches of a pattern are sorted by name. An existing path names itself, even with special characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Synthetic handwritten-looking digits, generated from the seed; needs no files.
    Digits,
    /// A directory of files in MNIST format, gzipped or not.
    Idx(PathBuf),
    /// A UTF-8 text, learnt character by character, in files that are concatenated.
    Text(PathBuf),
    /// A table in files with the same header. The column `label`, or else the last one, is the class (any words or numbers). The others are numeric.
    /// Every tenth row is held out.
    Csv(PathBuf),
    /// A table in Parquet files with the same columns, as in CSV files. Needs the feature `parquet`.
    Parquet(PathBuf),
    /// A table in Arrow files with the same columns, as in CSV files. They are in the file format (also called Feather), or in the stream format that
    /// Hugging Face's `datasets` write. Needs the feature `arrow`.
    Arrow(PathBuf),
    /// TFRecord files, or directories of them. Each record is a `tf.train.Example` with `image/encoded` or `image` (a PNG, JPEG, WebP, BMP or GIF
    /// file, or grey levels) and `image/class/label` or `label`. In a directory, all files with `tfrec` in their names are read. Of several files,
    /// those with the word `test`, `val` or `validation` in their names are held out. Without such files, every tenth record is. Compressed files
    /// (gzip, zlib) are decompressed into unnamed temporary files.
    TfRecord(PathBuf),
    /// Tar files in WebDataset's form, gzipped or not, or directories of them. Members with the same name up to the first dot are a sample: an image
    /// (`.png`, `.jpg`, `.jpeg`, `.webp`, `.bmp` or `.gif`), and its class in `.cls` as a number, or in `.json` as `label` or `cls`. Held out as in
    /// TFRecord files.
    WebDataset(PathBuf),
    /// A directory with the NumPy arrays `x_train.npy` and `y_train.npy`, and `x_test.npy` and `y_test.npy`, or with `images.npy` and `labels.npy`.
    /// Without a test part, every tenth sample is held out. Samples are images (8-bit levels of the shape `[N, height, width]` or `[N, height, width,
    /// 3]`) or rows of 32-bit or 64-bit floating-point numbers. Labels are integers.
    Npy(PathBuf),
    /// A directory with one directory of image files per class, or with two such directories, `train` and `test`, `val` or `validation`. Without
    /// these, every tenth image of a class is held out.
    Images(PathBuf),
    /// A directory with CIFAR-10's binary files: `data_batch_1.bin` to `data_batch_5.bin`, as many as exist, and `test_batch.bin`.
    Cifar(PathBuf),
    /// Servers on other machines that make the batches. Needs the feature `service`.
    Service(Service),
}

impl Source {
    /// Returns whether both name the same location. Servers may differ: the fingerprint detects different data.
    pub fn is_same(&self, other: &Self) -> bool {
        let places = |source: &Self| {
            let paths = source.paths().ok()?.into_iter();
            paths.map(|path| canonicalize(path).ok()).collect::<Option<Vec<_>>>()
        };
        let is_one_format = discriminant(self) == discriminant(other);
        let are_served = matches!(self, Self::Service(_));
        self == other
            || (is_one_format
                && (are_served || places(self).is_some_and(|paths| places(other) == Some(paths))))
    }

    /// Returns the usual augmentation of its images: mirroring and cropping for CIFAR, shifts and rotations for others.
    pub fn usual_augmentation(&self) -> Augmentation {
        Augmentation::new(match self {
            Self::Cifar(_) => vec![Arc::new(Mirror), Arc::new(Crop { padding: 4 })],
            _ => vec![Arc::new(Affine { pixels: 2, degrees: 10 })],
        })
    }

    /// Returns whether its samples are images in files of their own format, of any size.
    pub fn has_image_files(&self) -> bool {
        matches!(self, Self::TfRecord(_) | Self::WebDataset(_) | Self::Images(_))
    }

    /// Returns whether its classes have names, which determine their numbers by their order.
    pub fn names_classes(&self) -> bool {
        self.is_table() || matches!(self, Self::Images(_))
    }

    /// Returns whether it is a URL, such as `s3://bucket/folder`, instead of a path.
    pub fn is_remote(&self) -> bool {
        let scheme = self.path().and_then(Path::to_str).and_then(|path| path.split_once("://"));
        scheme.is_some_and(|(word, _)| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
        })
    }

    /// Returns whether it is a table: rows of named columns.
    pub fn is_table(&self) -> bool {
        matches!(self, Self::Csv(_) | Self::Parquet(_) | Self::Arrow(_))
    }

    /// Returns the features of this crate that the source needs and that are not compiled in.
    pub fn missing_features(&self) -> Vec<&'static str> {
        let needs = [
            ("parquet", matches!(self, Self::Parquet(_)), cfg!(feature = "parquet")),
            ("arrow", matches!(self, Self::Arrow(_)), cfg!(feature = "arrow")),
            ("service", matches!(self, Self::Service(_)), cfg!(feature = "service")),
            ("remote", self.is_remote(), cfg!(feature = "remote")),
        ];
        let missing = needs.into_iter().filter(|&(_, is_needed, is_built_in)| is_needed && !is_built_in);
        missing.map(|(feature, ..)| feature).collect()
    }

    /// Returns its path, or its URL.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Digits | Self::Service(_) => None,
            Self::Idx(path) | Self::Npy(path) | Self::Images(path) | Self::Cifar(path) => Some(path),
            Self::Text(path) | Self::Csv(path) | Self::Parquet(path) | Self::Arrow(path) => Some(path),
            Self::TfRecord(path) | Self::WebDataset(path) => Some(path),
        }
    }

    /// Returns the source of the same format at another path.
    #[cfg(feature = "remote")]
    pub(super) fn moved_to(&self, path: PathBuf) -> Self {
        self.format().map_or_else(|| self.clone(), |(_, with_path)| with_path(path))
    }

    fn format(&self) -> Option<&Format> {
        let is_own =
            |with_path: fn(PathBuf) -> Self| discriminant(&with_path("".into())) == discriminant(self);
        FORMATS.iter().find(|(_, with_path)| is_own(*with_path))
    }

    /// Returns the total size of its files in bytes, as far as they can be found.
    pub fn size_bytes(&self) -> u64 {
        let size = |path: PathBuf| {
            let Ok(found) = path.metadata() else { return 0 };
            if !found.is_dir() {
                return found.len();
            }
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.path().metadata().ok()).map(|file| file.len()).sum()
        };
        self.paths().into_iter().flatten().map(size).sum()
    }

    /// Returns the files and directories that it names.
    fn paths(&self) -> Result<Vec<PathBuf>, DataError> {
        match (self, self.path()) {
            (_, None) => Ok(vec![]),
            (Self::Idx(_) | Self::Npy(_) | Self::Images(_) | Self::Cifar(_), Some(path)) => {
                Ok(vec![path.into()])
            }
            (_, Some(path)) => files::named(path),
        }
    }
}

type Format = (&'static str, fn(PathBuf) -> Source);

/// The sources that have a path, by the prefix of their names.
const FORMATS: [Format; 10] = [
    ("idx", Source::Idx),
    ("npy", Source::Npy),
    ("text", Source::Text),
    ("csv", Source::Csv),
    ("parquet", Source::Parquet),
    ("arrow", Source::Arrow),
    ("tfrecord", Source::TfRecord),
    ("webdataset", Source::WebDataset),
    ("images", Source::Images),
    ("cifar", Source::Cifar),
];

impl FromStr for Source {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        let (word, path) = name.split_once(':').unwrap_or((name, ""));
        let found = match (name, word) {
            ("digits", _) => Some(Self::Digits),
            _ if path.is_empty() => None,
            (_, "service") => return path.parse().map(Self::Service),
            _ => {
                FORMATS.iter().find(|(known, _)| *known == word).map(|(_, with_path)| with_path(path.into()))
            }
        };
        found.ok_or_else(|| {
            DataError::other(format!(
                "unknown data set `{name}`: expected `digits`, `idx:DIR`, `text:FILES`, `csv:FILES`, `parquet:FILES`, `arrow:FILES`, \
                 `tfrecord:FILES_OR_DIR`, `webdataset:FILES_OR_DIR`, `npy:DIR`, `images:DIR`, `cifar:DIR` or \
                 `service:HOST:PORT,…`"
            ))
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.format().zip(self.path())) {
            (Self::Service(service), _) => write!(f, "service:{service}"),
            (_, Some(((word, _), path))) => write!(f, "{word}:{}", path.display()),
            (_, None) => f.write_str("digits"),
        }
    }
}

/// The options of [`load`](crate::load()). Each source uses those that concern it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Digits: the random seed.
    pub seed: u64,
    /// Digits: the number of training images.
    pub train_samples: usize,
    /// Digits: the number of test images.
    pub test_samples: usize,
    /// Text: the length of a window, in characters.
    pub context: usize,
    /// TFRecord, WebDataset and arrays: the number of classes. `None` derives it from the labels, for which all TFRecords are read once.
    pub classes: Option<usize>,
    /// Tables: the column of numbers that a regression predicts. `None` for classes: the column `label`, or the last one.
    pub target: Option<String>,
    /// TFRecord, WebDataset, arrays, images and CIFAR: augmentation of training images.
    pub augmentation: Augmentation,
    /// TFRecord, WebDataset and images: whether images are read in colour or as greyscale. `None` reads colour if training images have any.
    pub colour: Option<bool>,
    /// TFRecord, WebDataset and images: the height and width to which images are resized and cropped. `None` for the medians of the training images.
    pub image_size: Option<[usize; 2]>,
    /// TFRecord, WebDataset, images, arrays of images and CIFAR: the statistics by which levels are normalised. `None` for those of MNIST.
    pub normalize: Option<Normalize>,
    /// TFRecord, WebDataset and images: the treatment of damaged samples.
    pub on_bad_sample: OnBadSample,
    /// Remote sources: the cache of their objects.
    pub cache: Cache,
    /// MNIST format, text and tables: the size in bytes above which data stay in their files, or in unnamed temporary ones.
    pub in_memory_bytes: u64,
    /// Data servers: a request to stop, which ends the wait for them with [`DataError::Stopped`].
    pub stop: Stop,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            train_samples: 20_000,
            test_samples: 2_000,
            context: 64,
            classes: None,
            target: None,
            augmentation: Augmentation::default(),
            colour: None,
            image_size: None,
            normalize: None,
            on_bad_sample: OnBadSample::Error,
            cache: Cache::default(),
            in_memory_bytes: 1 << 30,
            stop: Stop::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::TestDirectory;
    use super::*;

    #[test]
    fn urls_are_distinguished_from_paths() {
        let csv = |path: &str| format!("csv:{path}").parse::<Source>().unwrap();
        for url in ["s3://bucket/folder", "https://host/file.csv", "http://host:80/a", "gs://bucket/a"] {
            assert!(csv(url).is_remote() && csv(url).is_same(&csv(url)), "{url}");
            assert!(!csv(url).is_same(&csv(&format!("{url}x"))), "{url}");
            assert_eq!(csv(url).to_string(), format!("csv:{url}"));
        }
        for path in ["a/b", "/a:b", "://a", "./s3://bucket", "C:/a"] {
            assert!(!csv(path).is_remote(), "{path}");
        }
    }

    #[test]
    fn sources_round_trip_through_text() {
        for name in [
            "digits",
            "idx:some/where",
            "text:a:b.txt,c",
            "csv:a-*.csv",
            "tfrecord:a",
            "webdataset:a-{00..12}.tar",
            "npy:a",
            "parquet:a-*",
            "arrow:a-*",
            "images:a/b",
            "cifar:c",
            "service:a:1,b:2",
        ] {
            assert_eq!(name.parse::<Source>().unwrap().to_string(), name);
        }
        for name in ["", "digit", "digits:", "idx", "idx:", "text:", "csv", "image:a"] {
            let message = name.parse::<Source>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`: expected `digits`, `idx:DIR`, `text")), "{message}");
            for word in
                ["csv", "parquet", "arrow", "tfrecord", "webdataset", "npy", "images", "cifar", "service"]
            {
                assert!(message.contains(&format!("`{word}:")), "{message}");
            }
        }
    }

    #[test]
    fn a_source_lists_the_features_that_it_lacks() {
        let built_in = [
            ("parquet", cfg!(feature = "parquet")),
            ("arrow", cfg!(feature = "arrow")),
            ("service", cfg!(feature = "service")),
            ("remote", cfg!(feature = "remote")),
        ];
        for (name, needed) in [
            ("digits", &[][..]),
            ("csv:a", &[]),
            ("parquet:a", &["parquet"]),
            ("arrow:a", &["arrow"]),
            ("service:a:1", &["service"]),
            ("csv:https://host/a", &["remote"]),
            ("parquet:s3://bucket/a", &["parquet", "remote"]),
        ] {
            let missing: Vec<_> =
                needed.iter().copied().filter(|feature| !built_in.contains(&(*feature, true))).collect();
            let source: Source = name.parse().unwrap();
            assert_eq!(source.missing_features(), missing, "{name}");
            if missing.is_empty() {
                continue;
            }
            let message = crate::load(&source, &Options::default()).unwrap_err().to_string();
            let expected = format!(
                "`{name}` cannot be read: this program was built without `--features {}`",
                missing.join(",")
            );
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn sources_with_the_same_files_are_the_same() {
        let directory = TestDirectory::new();
        let [a, b] = ["a.csv", "b.csv"].map(|name| directory.file(name, name).display().to_string());
        let root = directory.path().display();
        let source = |name: String| format!("csv:{name}").parse::<Source>().unwrap();
        let both = source(format!("{a},{b}"));
        assert!(both.is_same(&source(format!("{root}/./*.csv"))));
        assert!(both.is_same(&source(format!("{root}/{{a,b}}.csv"))));
        assert!(!both.is_same(&source(a.clone())));
        assert_eq!(
            [&both, &source(a.clone()), &Source::Idx(directory.path().into())].map(Source::size_bytes),
            [10, 5, 10]
        );
        assert!(source(a.clone()).is_same(&source(format!("{root}/./a.csv"))));
        assert!(!source(a.clone()).is_same(&Source::Text(a.into())));
    }
}
