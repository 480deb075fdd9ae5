//! Images and labels in the IDX files of MNIST.
//!
//! An IDX file is a magic number, a size for each dimension (big-endian words), then the bytes.

use std::cmp::Ordering;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::byte_file::{ByteFile, Compression};
use crate::stored::{Content, Images, Labels, Numbers, StoredSamples};
use crate::{DataError, Dataset, Kind, Options, Schema};

const IMAGES: &str = "images-idx3-ubyte";
const LABELS: &str = "labels-idx1-ubyte";
const CLASSES: u8 = 10;

/// Reads the data set in `directory`: the `train` and `t10k` pairs of files. If there is only one pair, its first 90 % are for training and the rest
/// for testing.
pub(super) fn read(directory: &Path, options: &Options) -> Result<Dataset, DataError> {
    if !directory.is_dir() {
        let problem = "is no directory: expected one that contains files in MNIST format";
        return Err(DataError::file(directory, problem));
    }
    let pair = |prefix| Pair::read(directory, prefix, options.in_memory_bytes);
    let ([height, width, channels], [train, test]) = match (pair("train")?, pair("t10k")?) {
        (Some(train), Some(test)) => {
            let (expected, found) = (train.images.shape, test.images.shape);
            if found != expected {
                let [[rows, columns, _], [height, width, _]] = [expected, found];
                let problem = format!(
                    "has images of {height}x{width} pixels: expected {rows}x{columns}, as in training"
                );
                return Err(DataError::file(test.path, problem));
            }
            (expected, [train.samples(0..train.count), test.samples(0..test.count)])
        }
        (Some(pair), None) | (None, Some(pair)) if pair.count < 2 => {
            return Err(DataError::too_short(&pair.path, "images", pair.count, 2));
        }
        (Some(pair), None) | (None, Some(pair)) => {
            let first = (pair.count * 9 / 10).max(1);
            (pair.images.shape, [pair.samples(0..first), pair.samples(first..pair.count)])
        }
        (None, None) => {
            let pair = |prefix| format!("{prefix}-{IMAGES} with {prefix}-{LABELS}");
            return Err(missing(directory, &format!("{} nor {}", pair("train"), pair("t10k"))));
        }
    };
    let kind = Kind::Images { height, width, channels, classes: CLASSES.into() };
    Ok(Dataset { kind, train, test, schema: Schema::default() })
}

struct Pair {
    /// The file of images.
    path: PathBuf,
    count: usize,
    images: Images,
    labels: Arc<Labels>,
}

impl Pair {
    /// Reads the two files whose names start with `prefix`, if they exist. Images larger than `in_memory_bytes` stay in their file.
    fn read(directory: &Path, prefix: &str, in_memory_bytes: u64) -> Result<Option<Self>, DataError> {
        let names = [IMAGES, LABELS].map(|name| format!("{prefix}-{name}"));
        let (path, path_of_labels) = match names.each_ref().map(|name| find(directory, name)) {
            [Some(images), Some(labels)] => (images, labels),
            [None, None] => return Ok(None),
            [images, _] => return Err(missing(directory, &names[usize::from(images.is_some())])),
        };
        let (file, [count, height, width]) = open(path.clone(), "images", 0x0000_0803)?;
        let (offset, size) = (header_bytes(3), count * height * width);
        let levels = match size as u64 > in_memory_bytes {
            true => Numbers::File(file, offset),
            false => Numbers::Memory(file.read(offset, size)?),
        };
        let (file, [found]) = open(path_of_labels.clone(), "labels", 0x0000_0801)?;
        if found != count {
            return Err(DataError::labels(&path_of_labels, found, &path, count));
        }
        let labels = file.read(header_bytes(1), count)?;
        if let Some(sample) = labels.iter().position(|&label| label >= CLASSES) {
            let (label, highest) = (labels[sample], CLASSES - 1);
            let problem = format!("labels sample {sample} as {label}: expected 0 to {highest}");
            return Err(DataError::file(path_of_labels, problem));
        }
        let images = Images::new(levels, [height, width, 1]);
        Ok(Some(Self { path, count, images, labels: Arc::new(Labels::Bytes(labels)) }))
    }

    fn samples(&self, range: Range<usize>) -> Arc<StoredSamples> {
        StoredSamples::new(Content::Images(self.images.clone()), &self.labels, range.collect())
    }
}

fn missing(directory: &Path, names: &str) -> DataError {
    DataError::file(directory, format!("contains no {names}: expected there, gzipped (.gz) or not"))
}

fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let names = [name.to_owned(), format!("{name}.gz")];
    names.map(|name| directory.join(name)).into_iter().find(|path| path.is_file())
}

fn header_bytes(dimensions: usize) -> u64 {
    4 * (1 + dimensions as u64)
}

/// Opens an IDX file of `what` with this magic number, decompressed, and returns its dimensions. Gzipped files are detected by content: browsers and
/// tools decompress files without renaming them.
fn open<const D: usize>(path: PathBuf, what: &str, magic: u32) -> Result<(ByteFile, [usize; D]), DataError> {
    let header = |content: &mut dyn Read| {
        let mut header = vec![];
        content.take(header_bytes(D)).read_to_end(&mut header).map_err(DataError::read(&path))?;
        sizes::<D>(&path, &header, what, magic)
    };
    let mut file = ByteFile::open(path.clone())?;
    if file.is_gzipped()? {
        (file, _) = file.unpacked(Compression::Gzip, |content| {
            let (_, length) = header(content)?;
            // Reads at most one byte more than expected.
            let rest = &mut content.take(length - header_bytes(D) + 1);
            io::copy(rest, &mut io::sink()).map_err(DataError::read(&path))
        })?;
    }
    let (shape, expected) = header(&mut file.reader())?;
    match file.length.cmp(&expected) {
        Ordering::Less => Err(truncated(&path, file.length, expected)),
        Ordering::Equal => Ok((file, shape)),
        Ordering::Greater => {
            let problem = format!("has trailing bytes: expected it to end after {expected}; fetch it again");
            Err(DataError::file(path, problem))
        }
    }
}

/// Returns the dimensions in a header, and the length that a file with this header must have.
fn sizes<const D: usize>(
    path: &Path,
    header: &[u8],
    what: &str,
    magic: u32,
) -> Result<([usize; D], u64), DataError> {
    if header.len() as u64 != header_bytes(D) {
        return Err(truncated(path, header.len() as u64, header_bytes(D)));
    }
    let words: Vec<_> = header.as_chunks().0.iter().map(|&word| u32::from_be_bytes(word)).collect();
    let (found, shape) = (words[0], &words[1..]);
    if found != magic {
        let problem = format!(
            "is not an IDX file of {what}: its magic number is {found:#010x}, expected {magic:#010x}"
        );
        return Err(DataError::file(path, problem));
    }
    let size = shape.iter().try_fold(1_usize, |size, &n| size.checked_mul(n as usize));
    let Some(size) = size.filter(|&size| size > 0 && size < isize::MAX as usize) else {
        let problem = format!("has the shape {shape:?}: expected sizes that are above 0 and fit in memory");
        return Err(DataError::file(path, problem));
    };
    Ok((std::array::from_fn(|d| shape[d] as usize), header_bytes(D) + size as u64))
}

fn truncated(path: &Path, found: u64, expected: u64) -> DataError {
    DataError::file(path, format!("is truncated: {found} bytes, expected {expected}; fetch it again"))
}

#[cfg(test)]
mod tests;
