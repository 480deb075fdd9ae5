//! Sources of data sets, and options for loading them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::augment::Augmentation;
use crate::bad::OnBadSample;
use crate::cache::Cache;
use crate::error::DataError;

/// The source of a data set.
///
/// With the feature `remote`, a path may also be a URL: `s3://BUCKET/FOLDER_OR_OBJECT`, or `https://HOST/OBJECT` where one file is
/// enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Synthetic handwritten-looking digits, generated from the seed; needs no files.
    Digits,
    /// A directory of files in MNIST format, gzipped or not.
    Idx(PathBuf),
    /// A UTF-8 text file, learnt character by character.
    Text(PathBuf),
    /// A table with a header: the column `label`, or else the last one, is the class (any words or numbers), the others are
    /// numeric. Every tenth row is held out.
    Csv(PathBuf),
    /// A TFRecord file, or a directory of them, each record a `tf.train.Example` with
    /// `image/encoded` or `image` (PNG, JPEG or grey levels) and `image/class/label` or `label`. In a directory, all
    /// files with `tfrec` in their names are read; those with the word `test`, `val` or `validation` are held out.
    /// If there is none, every tenth record is.
    TfRecord(PathBuf),
    /// A directory with one directory of PNG and JPEG files per class, or with two such directories, `train` and
    /// `test`; without these, every tenth image of a class is held out.
    Images(PathBuf),
    /// A directory with CIFAR-10's binary files: `data_batch_1.bin` to `data_batch_5.bin`, as many as there are, and
    /// `test_batch.bin`.
    Cifar(PathBuf),
}

impl Source {
    /// Whether both are the same location, however it is written.
    pub fn is_same(&self, other: &Self) -> bool {
        let place = |source: &Self| std::fs::canonicalize(source.path()?).ok();
        let is_one_format = std::mem::discriminant(self) == std::mem::discriminant(other);
        self == other || (is_one_format && place(self).is_some_and(|path| place(other) == Some(path)))
    }

    /// Whether it is on a server: a URL, such as `s3://bucket/folder`, and no path.
    pub fn is_remote(&self) -> bool {
        let scheme = self.path().and_then(Path::to_str).and_then(|path| path.split_once("://"));
        scheme.is_some_and(|(word, _)| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
        })
    }

    /// Its path, or its URL.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Digits => None,
            Self::Idx(path)
            | Self::Text(path)
            | Self::Csv(path)
            | Self::TfRecord(path)
            | Self::Images(path)
            | Self::Cifar(path) => Some(path),
        }
    }

    /// The same format at another path.
    pub(super) fn moved_to(&self, path: PathBuf) -> Self {
        let mut moved = self.clone();
        match &mut moved {
            Self::Digits => {}
            Self::Idx(old)
            | Self::Text(old)
            | Self::Csv(old)
            | Self::TfRecord(old)
            | Self::Images(old)
            | Self::Cifar(old) => *old = path,
        }
        moved
    }
}

impl FromStr for Source {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        let unknown = || DataError::UnknownSource { name: name.into() };
        let (word, path) = name.split_once(':').unwrap_or((name, ""));
        let with_path = match word {
            "digits" if name == word => return Ok(Self::Digits),
            "idx" => Self::Idx,
            "text" => Self::Text,
            "csv" => Self::Csv,
            "tfrecord" => Self::TfRecord,
            "images" => Self::Images,
            "cifar" => Self::Cifar,
            _ => return Err(unknown()),
        };
        if path.is_empty() { Err(unknown()) } else { Ok(with_path(path.into())) }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digits => write!(f, "digits"),
            Self::Idx(path) => write!(f, "idx:{}", path.display()),
            Self::Text(path) => write!(f, "text:{}", path.display()),
            Self::Csv(path) => write!(f, "csv:{}", path.display()),
            Self::TfRecord(path) => write!(f, "tfrecord:{}", path.display()),
            Self::Images(path) => write!(f, "images:{}", path.display()),
            Self::Cifar(path) => write!(f, "cifar:{}", path.display()),
        }
    }
}

/// The options of [`load`](crate::load()); each source uses those that concern it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Digits: the random seed.
    pub seed: u64,
    /// Digits: the number of training images.
    pub train_samples: usize,
    /// Digits: the number of test images.
    pub test_samples: usize,
    /// Text: the length of a window, in characters.
    pub context: usize,
    /// TFRecord: the number of classes. `None` reads all records once to find it.
    pub classes: Option<usize>,
    /// TFRecord, images and CIFAR: augmentation of training images; `None` for none.
    pub augmentation: Option<Augmentation>,
    /// TFRecord and images: whether they are read in colour, and not as grey.
    pub colour: bool,
    /// TFRecord and images: what becomes of damaged ones.
    pub on_bad_sample: OnBadSample,
    /// Sources on servers: where their objects are kept.
    pub cache: Cache,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            train_samples: 20_000,
            test_samples: 2_000,
            context: 64,
            classes: None,
            augmentation: None,
            colour: false,
            on_bad_sample: OnBadSample::Error,
            cache: Cache::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_told_from_a_path() {
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
    fn sources_read_as_they_are_written() {
        for name in
            ["digits", "idx:some/where", "text:a:b.txt", "csv:a.csv", "tfrecord:a", "images:a/b", "cifar:c"]
        {
            assert_eq!(name.parse::<Source>().unwrap().to_string(), name);
        }
        for name in ["", "digit", "digits:", "idx", "idx:", "text:", "csv", "image:a"] {
            let message = name.parse::<Source>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`: expected `digits`, `idx:DIR`, `text")), "{message}");
            for word in ["csv", "tfrecord", "images", "cifar"] {
                assert!(message.contains(&format!("`{word}:")), "{message}");
            }
        }
    }
}
