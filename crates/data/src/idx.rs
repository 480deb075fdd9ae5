//! Images and labels in the IDX files of MNIST.
//!
//! An IDX file is a magic number, a size for each dimension (big-endian words), then the bytes.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;

use crate::augment::Augmentation;
use crate::byte_file::{ByteFile, Compression};
use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::schema::Schema;
use crate::source::Options;
use crate::split::Split;
use crate::stored::{Content, FileImages, Labels, StoredSamples};

const IMAGES: &str = "images-idx3-ubyte";
const LABELS: &str = "labels-idx1-ubyte";
const CLASSES: u8 = 10;

/// Reads the data set in `directory`: the `train` and `t10k` pairs of files, or, if there is only one pair, its first 90 %
/// for training and the rest for testing.
///
/// # Errors
///
/// If there is no complete pair, or a file is unreadable or malformed, or a label is above 9.
pub(super) fn read(directory: &Path, options: &Options) -> Result<Dataset, DataError> {
    if !directory.is_dir() {
        return Err(DataError::file(
            directory,
            "is not a directory: expected one that contains files in MNIST format",
        ));
    }
    let pair = |prefix| Pair::read(directory, prefix, options.in_memory_bytes);
    let ([height, width], [train, test]) = match (pair("train")?, pair("t10k")?) {
        (Some(train), Some(test)) => {
            let (expected, found) = (train.sides(), test.sides());
            if found != expected {
                let problem =
                    format!("has images of the shape {found:?}: expected {expected:?}, as in training");
                return Err(DataError::file(test.path, problem));
            }
            (expected, [train.all(), test.all()])
        }
        (Some(pair), None) | (None, Some(pair)) => (pair.sides(), pair.nine_to_one()?),
        (None, None) => {
            let pair = |prefix| format!("{prefix}-{IMAGES} with {prefix}-{LABELS}");
            let names = format!("{} nor {}", pair("train"), pair("t10k"));
            return Err(missing(directory, &names));
        }
    };
    let kind = Kind::Images { height, width, channels: 1, classes: CLASSES.into() };
    Ok(Dataset { kind, train, test, schema: Schema::default() })
}

/// The images and the labels of the same samples.
struct Pair {
    /// The file of images.
    path: PathBuf,
    /// Samples, height and width.
    shape: [usize; 3],
    pixels: Pixels,
    labels: Vec<u8>,
}

/// The pixels of a pair.
enum Pixels {
    Memory(Vec<u8>),
    File(ByteFile),
}

impl Pair {
    /// Reads the two files whose names start with `prefix`, if they exist. Images that are larger than `in_memory_bytes` stay in
    /// their file.
    fn read(directory: &Path, prefix: &str, in_memory_bytes: u64) -> Result<Option<Self>, DataError> {
        let names = [IMAGES, LABELS].map(|name| format!("{prefix}-{name}"));
        let (path, labels) = match names.each_ref().map(|name| find(directory, name)) {
            [Some(images), Some(labels)] => (images, labels),
            [None, None] => return Ok(None),
            [images, _] => {
                let [image_file, label_file] = names;
                let names = if images.is_none() { image_file } else { label_file };
                return Err(missing(directory, &names));
            }
        };
        let file = Idx::<3>::open(path.clone(), "images", 0x0000_0803)?;
        let shape = file.shape;
        let pixels = match file.size as u64 > in_memory_bytes {
            true => Pixels::File(file.whole()?),
            false => Pixels::Memory(file.bytes()?),
        };
        let file = Idx::<1>::open(labels.clone(), "labels", 0x0000_0801)?;
        let (found, expected) = (file.shape[0], shape[0]);
        let bytes = file.bytes()?;
        if found != expected {
            return Err(DataError::labels(&labels, found, &path, expected));
        }
        if let Some(sample) = bytes.iter().position(|&label| label >= CLASSES) {
            let (label, highest) = (bytes[sample], CLASSES - 1);
            let problem = format!("labels sample {sample} as {label}: expected 0 to {highest}");
            return Err(DataError::file(labels, problem));
        }
        Ok(Some(Self { path, shape, pixels, labels: bytes }))
    }

    /// Height and width of an image.
    fn sides(&self) -> [usize; 2] {
        let [_, sides @ ..] = self.shape;
        sides
    }

    /// All samples.
    fn all(self) -> Split {
        let count = self.labels.len();
        let [all, _] = self.divided(count);
        all
    }

    /// The first 90 % of the samples, and the rest.
    fn nine_to_one(self) -> Result<[Split; 2], DataError> {
        let found = self.labels.len();
        if found < 2 {
            let path = self.path;
            return Err(DataError::too_short(&path, "images", found, 2));
        }
        Ok(self.divided((found * 9 / 10).max(1)))
    }

    /// The first samples, so many, and the rest.
    fn divided(self, first: usize) -> [Split; 2] {
        let Self { shape: [count, height, width], pixels, mut labels, .. } = self;
        match pixels {
            Pixels::Memory(mut pixels) => {
                let pixels_of_rest = pixels.split_off(first * height * width);
                let rest = Split::Images { pixels: pixels_of_rest, labels: labels.split_off(first) };
                [Split::Images { pixels, labels }, rest]
            }
            Pixels::File(file) => {
                let (file, offset) = (Arc::new(file), Idx::<3>::HEADER_BYTES as u64);
                let shape = [height, width, 1];
                let images = Content::Images(FileImages {
                    file,
                    offset,
                    shape,
                    augmentation: Augmentation::default(),
                    normalization: None,
                });
                let labels = Arc::new(Labels::Bytes(labels));
                [0..first, first..count]
                    .map(|part| Split::Stored(StoredSamples::new(images.clone(), &labels, part.collect())))
            }
        }
    }
}

fn missing(directory: &Path, names: &str) -> DataError {
    DataError::file(directory, format!("contains no {names}: expected there, gzipped (.gz) or not"))
}

fn truncated(path: PathBuf, found: usize, expected: usize) -> DataError {
    DataError::file(path, format!("is truncated: {found} bytes, expected {expected}; fetch it again"))
}

/// The file `name` in `directory`, gzipped or not.
fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    [name.to_owned(), format!("{name}.gz")]
        .map(|name| directory.join(name))
        .into_iter()
        .find(|path| path.is_file())
}

/// An IDX file of bytes with `D` dimensions, read up to the end of its header.
struct Idx<const D: usize> {
    path: PathBuf,
    shape: [usize; D],
    /// Bytes after the header.
    size: usize,
    file: Box<dyn Read>,
}

impl<const D: usize> Idx<D> {
    const HEADER_BYTES: usize = 4 * (1 + D);

    /// Reads the header of the file at `path`; `magic` is the magic number of a file of `what`.
    fn open(path: PathBuf, what: &'static str, magic: u32) -> Result<Self, DataError> {
        let unreadable = DataError::read(&path);
        let mut file = open(&path).map_err(unreadable)?;
        let header = read_up_to(&mut file, Self::HEADER_BYTES).map_err(unreadable)?;
        if header.len() < Self::HEADER_BYTES {
            return Err(truncated(path, header.len(), Self::HEADER_BYTES));
        }
        let mut words = header.chunks_exact(4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]]));
        let found = words.next().unwrap_or_default();
        if found != magic {
            let problem = format!(
                "is not an IDX file of {what}: its magic number is {found:#010x}, expected {magic:#010x}"
            );
            return Err(DataError::file(path, problem));
        }
        let shape: Vec<u32> = words.collect();
        let size = shape.iter().try_fold(1_usize, |size, &n| size.checked_mul(n as usize));
        let Some(size) = size.filter(|&size| size > 0 && size < isize::MAX as usize) else {
            let problem =
                format!("has the shape {shape:?}: expected sizes that are above 0 and fit in memory");
            return Err(DataError::file(path, problem));
        };
        Ok(Self { path, shape: std::array::from_fn(|d| shape[d] as usize), size, file })
    }

    /// Reads the bytes after the header.
    fn bytes(mut self) -> Result<Vec<u8>, DataError> {
        let bytes = read_up_to(&mut self.file, self.size + 1).map_err(DataError::read(&self.path))?;
        self.check_end(bytes.len())?;
        Ok(bytes)
    }

    /// The whole file, unpacked.
    fn whole(self) -> Result<ByteFile, DataError> {
        let mut file = ByteFile::open(self.path.clone())?;
        if file.is_gzipped()? {
            // One byte more than there should be, and no further.
            let most = (Self::HEADER_BYTES + self.size) as u64 + 1;
            (file, _) = file.unpacked(Compression::Gzip, |content| {
                let found = content.pass(most, |_| ())?;
                self.check_end((found as usize).saturating_sub(Self::HEADER_BYTES))
            })?;
        }
        self.check_end((file.length() as usize).saturating_sub(Self::HEADER_BYTES))?;
        Ok(file)
    }

    /// Checks that so many bytes after the header are what the header says.
    fn check_end(&self, found: usize) -> Result<(), DataError> {
        let (path, expected) = (self.path.clone(), Self::HEADER_BYTES + self.size);
        match found.cmp(&self.size) {
            Ordering::Less => Err(truncated(path, Self::HEADER_BYTES + found, expected)),
            Ordering::Greater => Err(DataError::file(
                path,
                format!("has trailing bytes: expected it to end after {expected}; fetch it again"),
            )),
            Ordering::Equal => Ok(()),
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
