//! Where a data set comes from, and what is to be made of it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::augment::Augmentation;
use crate::error::DataError;

/// Where a data set comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Handwritten-looking digits, drawn from the seed; needs no files.
    Digits,
    /// A directory of files in the format of MNIST, gzipped or not.
    Idx(PathBuf),
    /// A text file in UTF-8, learnt character by character.
    Text(PathBuf),
    /// A table with a header: the column `label`, or else the last, is the class (any words or numbers), the others
    /// are numbers. Every tenth row is to test on.
    Csv(PathBuf),
    /// A file of TensorFlow's records, or a directory of such files, each record a `tf.train.Example` with
    /// `image/encoded` or `image` (PNG, JPEG or grey levels) and `image/class/label` or `label`. Of a directory the
    /// files with `tfrec` in their names are read; those with the word `test`, `val` or `validation` are to test on.
    /// Where there is none, every tenth record is.
    TfRecord(PathBuf),
    /// A directory with a directory of PNG and JPEG files for each class, or with two such directories, `train` and
    /// `test`; where these are not there, every tenth image of a class is to test on.
    Images(PathBuf),
}

impl Source {
    /// Whether both are the same place, however it is written.
    pub fn is_same(&self, other: &Self) -> bool {
        let place = |source: &Self| match source {
            Self::Digits => None,
            Self::Idx(path)
            | Self::Text(path)
            | Self::Csv(path)
            | Self::TfRecord(path)
            | Self::Images(path) => std::fs::canonicalize(path).ok(),
        };
        let is_one_format = std::mem::discriminant(self) == std::mem::discriminant(other);
        self == other || (is_one_format && place(self).is_some_and(|path| place(other) == Some(path)))
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
        }
    }
}

/// What [`load`](crate::load()) needs to know besides the source; each source reads what concerns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Digits: the seed they are drawn from.
    pub seed: u64,
    /// Digits: the number of images to train on.
    pub train_samples: usize,
    /// Digits: the number of images to test on.
    pub test_samples: usize,
    /// Text: the length of a window, in characters.
    pub context: usize,
    /// TFRecord: the number of classes. Where none is given, all records are read once to learn it.
    pub classes: Option<usize>,
    /// TFRecord and images: how images to train on are varied; `None` leaves them as they are.
    pub augmentation: Option<Augmentation>,
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_read_as_they_are_written() {
        for name in ["digits", "idx:some/where", "text:a:b.txt", "csv:a.csv", "tfrecord:a", "images:a/b"] {
            assert_eq!(name.parse::<Source>().unwrap().to_string(), name);
        }
        for name in ["", "digit", "digits:", "idx", "idx:", "text:", "csv", "image:a"] {
            let message = name.parse::<Source>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`: expected `digits`, `idx:DIR`, `text")), "{message}");
            for word in ["csv", "tfrecord", "images"] {
                assert!(message.contains(&format!("`{word}:")), "{message}");
            }
        }
    }
}
