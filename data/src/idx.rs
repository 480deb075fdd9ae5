//! Images and labels in the IDX files of MNIST.
//!
//! An IDX file is a magic number, a size for each dimension (big-endian words), then the bytes.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::schema::Schema;
use crate::split::Split;

const IMAGES: &str = "images-idx3-ubyte";
const LABELS: &str = "labels-idx1-ubyte";
const CLASSES: u8 = 10;

/// Reads the data set in `directory`: the `train` and `t10k` pairs of files, or, if there is only one pair, its first 90 %
/// for training and the rest for testing.
///
/// # Errors
///
/// If there is no complete pair, or a file is unreadable or malformed, or a label is above 9.
pub(super) fn read(directory: &Path) -> Result<Dataset, DataError> {
    if !directory.is_dir() {
        return Err(DataError::NoDirectory { path: directory.into() });
    }
    let (train, test) = match (Pair::read(directory, "train")?, Pair::read(directory, "t10k")?) {
        (Some(train), Some(test)) => (train, test),
        (Some(pair), None) | (None, Some(pair)) => pair.nine_to_one()?,
        (None, None) => {
            let pair = |prefix| format!("{prefix}-{IMAGES} with {prefix}-{LABELS}");
            let names = format!("{} nor {}", pair("train"), pair("t10k"));
            return Err(DataError::NoFile { path: directory.into(), names });
        }
    };
    let [_, height, width] = train.images.shape;
    let [_, found @ ..] = test.images.shape;
    if found != [height, width] {
        let path = test.images.path;
        return Err(DataError::Size { path, found, expected: [height, width] });
    }
    let kind = Kind::Images { height, width, channels: 1, classes: CLASSES.into() };
    Ok(Dataset { kind, train: train.into(), test: test.into(), schema: Schema::default() })
}

/// The images and the labels of the same samples.
struct Pair {
    images: Idx<3>,
    labels: Idx<1>,
}

impl Pair {
    /// Reads the two files whose names start with `prefix`, if they exist.
    fn read(directory: &Path, prefix: &str) -> Result<Option<Self>, DataError> {
        let names = [IMAGES, LABELS].map(|name| format!("{prefix}-{name}"));
        let (images, labels) = match names.each_ref().map(|name| find(directory, name)) {
            [Some(images), Some(labels)] => (images, labels),
            [None, None] => return Ok(None),
            [images, _] => {
                let [image_file, label_file] = names;
                let names = if images.is_none() { image_file } else { label_file };
                return Err(DataError::NoFile { path: directory.into(), names });
            }
        };
        let images = Idx::read(images, "images", 0x0000_0803)?;
        let labels = Idx::read(labels, "labels", 0x0000_0801)?;
        let (found, expected) = (labels.shape[0], images.shape[0]);
        if found != expected {
            let path = labels.path;
            return Err(DataError::Count { path, found, images: images.path, expected });
        }
        labels.check_classes()?;
        Ok(Some(Self { images, labels }))
    }

    /// The first 90 % of the samples, and the rest.
    fn nine_to_one(mut self) -> Result<(Self, Self), DataError> {
        let found = self.labels.shape[0];
        if found < 2 {
            let path = self.images.path;
            return Err(DataError::TooShort { path, what: "images", found, expected: 2 });
        }
        let train = (found * 9 / 10).max(1);
        let rest = Self { images: self.images.split_off(train), labels: self.labels.split_off(train) };
        Ok((self, rest))
    }
}

impl From<Pair> for Split {
    fn from(pair: Pair) -> Self {
        Self::Images { pixels: pair.images.bytes, labels: pair.labels.bytes }
    }
}

/// The file `name` in `directory`, gzipped or not.
fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    [name.to_owned(), format!("{name}.gz")]
        .map(|name| directory.join(name))
        .into_iter()
        .find(|path| path.is_file())
}

/// An IDX file of bytes with `D` dimensions.
struct Idx<const D: usize> {
    path: PathBuf,
    shape: [usize; D],
    bytes: Vec<u8>,
}

impl<const D: usize> Idx<D> {
    /// Reads the file at `path`; `magic` is the magic number of a file of `what`.
    fn read(path: PathBuf, what: &'static str, magic: u32) -> Result<Self, DataError> {
        let unreadable = |error| DataError::Read { path: path.clone(), error };
        let mut file = open(&path).map_err(unreadable)?;
        let header_size = 4 * (1 + D);
        let header = read_up_to(&mut file, header_size).map_err(unreadable)?;
        if header.len() < header_size {
            return Err(DataError::Truncated { path, found: header.len(), expected: header_size });
        }

        let mut words = header.chunks_exact(4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]]));
        let found = words.next().unwrap_or_default();
        if found != magic {
            return Err(DataError::Magic { path, what, found, expected: magic });
        }
        let shape: Vec<u32> = words.collect();
        let size = shape.iter().try_fold(1_usize, |size, &n| size.checked_mul(n as usize));
        let Some(size) = size.filter(|&size| size > 0 && size < isize::MAX as usize) else {
            return Err(DataError::Shape { path, shape });
        };

        let bytes = read_up_to(&mut file, size + 1).map_err(unreadable)?;
        let (found, expected) = (header_size + bytes.len(), header_size + size);
        match bytes.len().cmp(&size) {
            Ordering::Less => Err(DataError::Truncated { path, found, expected }),
            Ordering::Greater => Err(DataError::Trailing { path, expected }),
            Ordering::Equal => Ok(Self { path, shape: std::array::from_fn(|d| shape[d] as usize), bytes }),
        }
    }

    /// Removes all but the first `samples` samples, which are at least one.
    fn split_off(&mut self, samples: usize) -> Self {
        let size = self.bytes.len() / self.shape[0];
        let mut rest =
            Self { path: self.path.clone(), shape: self.shape, bytes: self.bytes.split_off(samples * size) };
        rest.shape[0] = self.shape[0] - samples;
        self.shape[0] = samples;
        rest
    }
}

impl Idx<1> {
    fn check_classes(&self) -> Result<(), DataError> {
        match self.bytes.iter().enumerate().find(|&(_, &label)| label >= CLASSES) {
            None => Ok(()),
            Some((sample, &label)) => {
                let path = self.path.clone();
                Err(DataError::Label { path, sample, label, highest: CLASSES - 1 })
            }
        }
    }
}

/// Opens a file, and decompresses it if it is gzipped.
fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut file = BufReader::new(File::open(path)?);
    // Detected by content: browsers and tools decompress files without renaming them.
    let gzipped = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if gzipped { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) })
}

/// Reads `limit` bytes, or fewer if the file ends.
///
/// The buffer grows with the data: a limit from a damaged header allocates nothing.
fn read_up_to(file: &mut impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
