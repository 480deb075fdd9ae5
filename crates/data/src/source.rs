//! Sources of data sets, and options for loading them.

use std::fmt;
use std::fs::canonicalize;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::files;
use crate::{Affine, Augmentation, Crop, DataError, Mirror, Normalize, OnBadSample};

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

    fn paths(&self) -> Result<Vec<PathBuf>, DataError> {
        self.path().map_or(Ok(vec![]), files::named)
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

/// Servers on other machines that make batches (`unisono serve-data`). All of them serve the same data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The addresses as `HOST:PORT`, at least one. Servers that join these are discovered.
    pub servers: Vec<String>,
    /// The file with the token that the servers require.
    pub token_file: Option<PathBuf>,
}

impl Service {
    /// Returns whether a text is a host and a port.
    pub fn is_address(text: &str) -> bool {
        let is_host = |host: &str| {
            !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@?#".contains(c))
        };
        text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok())
    }

    /// Returns the error for an invalid address.
    pub fn refused(address: &str) -> DataError {
        DataError::other(format!("`{address}` is not the address of a data server: expected HOST:PORT"))
    }
}

impl FromStr for Service {
    type Err = DataError;

    fn from_str(list: &str) -> Result<Self, DataError> {
        let servers: Vec<_> = list.split(',').map(|server| server.trim().to_owned()).collect();
        match servers.iter().find(|server| !Self::is_address(server)) {
            Some(wrong) => Err(Self::refused(wrong)),
            None => Ok(Self { servers, token_file: None }),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.servers.join(","))
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
    /// TFRecord, WebDataset and arrays: the number of classes, at least 1. `None` derives it from the labels, for which all TFRecords are read once.
    pub classes: Option<usize>,
    /// Tables: the column of numbers that a regression predicts. `None` for classes: the column `label`, or the last one.
    pub target: Option<String>,
    /// TFRecord, WebDataset, images, arrays of images and CIFAR: augmentation of training images.
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
    /// MNIST format, text and tables: the size in bytes above which data are in files: MNIST's own, and unnamed temporary ones for text and tables.
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

/// The cache of objects of remote sources, and the receiver of reports on downloads and waits.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    /// The cache directory, with one directory per URL. By default, `unisono-data-cache-` and the user ID, in the system's temporary directory.
    pub folder: Option<PathBuf>,
    /// Receives reports: the size and origin of the next download, the progress of another process that downloads, and data servers that do not
    /// answer. By default, reports go to `tracing`.
    pub report: Option<fn(&str)>,
}

impl Cache {
    /// Reports a download or a wait to [`report`](Self#structfield.report) or, by default, to `tracing`.
    pub fn report(&self, text: &str) {
        match self.report {
            Some(report) => report(text),
            None => tracing::info!("{text}"),
        }
    }
}

/// A flag that ends a wait for data, or makes a training run save and stop after the current step. Any copy may set it at any time: in a
/// signal handler, another thread or a timer.
///
/// In a training run, setting it on one rank is enough. The request travels with the sums of every step, so all ranks stop after the same step.
///
/// ```
/// use unisono_data::Stop;
///
/// let stop = Stop::default();          // for `Options::stop` or the settings of a run
/// let other = stop.clone();            // for the handler
/// other.ask();
/// assert!(stop.is_asked());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Requests a stop.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether a stop was requested.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, for code that can only set a flag, such as a signal handler. The value `true` requests a stop.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

#[cfg(test)]
mod tests;
