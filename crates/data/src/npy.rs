//! Data sets of NumPy arrays: images or rows of numbers, which stay in their files, and their labels.
//!
//! A file is a magic number, a version, the length of the header, the header as a Python dictionary, then the numbers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::byte_file::ByteFile;
use crate::normalization::{Normalize, Sums};
use crate::split::nine_to_one;
use crate::stored::{Content, Images, Labels, Numbers, Reals, Rows, StoredSamples};
use crate::survey::sums;
use crate::{Augmentation, DataError, Dataset, Kind, Options, Schema};

/// The file names of training samples and their labels, in order of preference.
const TRAIN: [[&str; 2]; 2] = [["x_train.npy", "y_train.npy"], ["images.npy", "labels.npy"]];
const TEST: [&str; 2] = ["x_test.npy", "y_test.npy"];

/// Finds the arrays in `directory`: `x_train.npy` with `y_train.npy`, or else `images.npy` with `labels.npy`. `x_test.npy` with `y_test.npy` are held
/// out. Without them, every tenth sample is.
/// Rows are standardised by the mean and the standard deviation of the training rows, or by those of `known`, a model's schema
/// and its number of classes.
pub(super) fn read(
    directory: &Path,
    options: &Options,
    known: Option<(&Schema, usize)>,
) -> Result<Dataset, DataError> {
    let names = TRAIN.into_iter().find(|[samples, _]| directory.join(samples).exists()).unwrap_or(TRAIN[0]);
    let train = Pair::read(directory, names)?;
    let has_test = TEST.iter().any(|name| directory.join(name).exists());
    let test = has_test.then(|| Pair::read(directory, TEST)).transpose()?;
    let (training, held_out) = match &test {
        Some(test) => ((0..train.count).collect(), (0..test.count).collect()),
        None => nine_to_one(train.count),
    };
    if held_out.is_empty() {
        return Err(DataError::too_short(&train.path, "samples", train.count, 10));
    }
    let pairs = || [Some(&train), test.as_ref()].into_iter().flatten();
    pairs().try_for_each(|pair| pair.check_shape(&train))?;
    let classes = match known.map(|(_, classes)| classes).or(options.classes) {
        Some(classes) => pairs().try_for_each(|pair| pair.check_labels(classes)).map(|()| classes)?,
        None => pairs().map(Pair::highest).max().unwrap_or_default() as usize + 1,
    };
    let (kind, schema) = match &train.samples {
        Content::Images(images) => {
            let [height, width, channels] = images.shape;
            let measured = || sums(&training, |image| Ok(Sums::of(&images.read(image)?, channels)));
            let normalization = Normalize::resolved(options.normalize.as_ref(), channels, measured)?;
            let schema = Schema { normalization, ..Schema::default() };
            (Kind::Images { height, width, channels, classes }, schema)
        }
        // (The statistics of a known model are not a setting of the user.)
        Content::Rows(..)
            if known.is_none() && (options.normalize.is_some() || !options.augmentation.is_empty()) =>
        {
            let problem = "has rows, which are neither normalised by other statistics (--normalize) nor augmented (--augment): \
                           expected images";
            return Err(DataError::file(train.path, problem));
        }
        Content::Rows(rows, _) => {
            let features = rows.width;
            let schema = match known {
                Some((schema, _)) if schema.columns.len() == features => schema.clone(),
                Some((schema, _)) => {
                    let expected = schema.columns.len();
                    let problem = format!("has {features} columns: expected {expected}, as in training");
                    return Err(DataError::file(train.path, problem));
                }
                None => {
                    // Columns are named by their numbers.
                    let names: Vec<_> = (0..features).map(|column| column.to_string()).collect();
                    Schema { columns: rows.statistics(&names, &training)?, ..Schema::default() }
                }
            };
            (Kind::Table { features, classes }, schema)
        }
    };
    let test = test.as_ref().unwrap_or(&train).split(held_out, &schema, Augmentation::default());
    Ok(Dataset { train: train.split(training, &schema, options.augmentation.clone()), test, kind, schema })
}

struct Pair {
    path: PathBuf,
    samples: Content,
    count: usize,
    path_of_labels: PathBuf,
    labels: Arc<Labels>,
}

impl Pair {
    fn read(directory: &Path, [samples, labels]: [&str; 2]) -> Result<Self, DataError> {
        let [path, path_of_labels] = [samples, labels].map(|name| directory.join(name));
        if let Some(missing) = [&path, &path_of_labels].into_iter().find(|path| !path.exists()) {
            let missing = missing.file_name().unwrap_or_default().display();
            let others = TRAIN.map(|[samples, labels]| format!("`{samples}` with `{labels}`")).join(" or ");
            let problem = format!(
                "contains no `{missing}`: expected {others}, and where a part is held out `x_test.npy` with `y_test.npy`"
            );
            return Err(DataError::file(directory, problem));
        }
        let array = Array::open(path.clone())?;
        let labels = Array::open(path_of_labels.clone())?.labels()?;
        let (found, expected) = (labels.len(), array.shape[0]);
        if found != expected {
            return Err(DataError::labels(&path_of_labels, found, &path, expected));
        }
        let labels = Arc::new(Labels::new(labels));
        Ok(Self { path, samples: array.samples()?, count: found, path_of_labels, labels })
    }

    fn highest(&self) -> u32 {
        (0..self.count).map(|sample| self.labels.get(sample)).max().unwrap_or_default()
    }

    fn check_labels(&self, classes: usize) -> Result<(), DataError> {
        match (0..self.count).find(|&sample| self.labels.get(sample) as usize >= classes) {
            None => Ok(()),
            Some(record) => {
                let (label, highest) = (self.labels.get(record), classes.saturating_sub(1));
                let problem = format!("is the label {label}: expected one from 0 to {highest}");
                Err(DataError::record(&self.path_of_labels, record, problem))
            }
        }
    }

    fn check_shape(&self, expected: &Self) -> Result<(), DataError> {
        let shape = |samples: &Content| match samples {
            Content::Images(images) => format!("images of the shape {:?}", images.shape),
            Content::Rows(rows, _) => format!("rows of {} numbers", rows.width),
        };
        let (found, expected) = (shape(&self.samples), shape(&expected.samples));
        if found == expected {
            return Ok(());
        }
        let problem = format!("has {found}: expected {expected}, as in training");
        Err(DataError::file(self.path.clone(), problem))
    }

    fn split(&self, samples: Vec<usize>, schema: &Schema, augmentation: Augmentation) -> Arc<StoredSamples> {
        let content = match &self.samples {
            Content::Images(images) => {
                let normalization = schema.normalization.clone();
                Content::Images(Images { augmentation, normalization, ..images.clone() })
            }
            Content::Rows(rows, _) => Content::Rows(Arc::clone(rows), schema.columns.as_slice().into()),
        };
        StoredSamples::new(content, &self.labels, samples)
    }
}

/// The maximum size of a header, as in NumPy.
const MOST_OF_HEADER: usize = 10_000;

/// A row-major array of little-endian numbers.
struct Array {
    file: ByteFile,
    /// The offset of the first number.
    offset: u64,
    /// The type of a number, such as `f4`.
    kind: String,
    /// The dimensions, at least one; all are above 0.
    shape: Vec<usize>,
}

impl Array {
    fn open(path: PathBuf) -> Result<Self, DataError> {
        let file = ByteFile::open(path)?;
        let refused = |problem: String| DataError::file(&file.path, problem);
        let broken = |problem: &str| refused(format!("{problem}: the file is damaged, or not a .npy file"));
        let start = file.start()?;
        let (before, length) = match *start {
            [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, a, b, ..] => (10, u16::from_le_bytes([a, b]).into()),
            [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d, ..] => {
                (12, u32::from_le_bytes([a, b, c, d]) as usize)
            }
            _ => return Err(broken("has no header of version 1 to 3")),
        };
        let offset = before + length as u64;
        if length > MOST_OF_HEADER || offset > file.length {
            return Err(broken(&format!("has a header of {length} bytes")));
        }
        let header = file.read(before, length)?;
        let header = str::from_utf8(&header).map_err(|_| broken("has a header that is no text"))?;
        let kind = string(header, "descr").ok_or_else(|| match value(header, "descr") {
            Some(fields) if fields.starts_with('[') => {
                refused("is a structured array: expected numbers, such as one of its fields".into())
            }
            _ => broken("has no `descr`"),
        })?;
        let shape = sizes(header).ok_or_else(|| broken("has no `shape`"))?;
        match value(header, "fortran_order") {
            Some(order) if order.starts_with("False") => {}
            Some(order) if order.starts_with("True") => {
                let problem =
                    "is in Fortran's order: save it with `np.save(file, np.ascontiguousarray(array))`";
                return Err(refused(problem.into()));
            }
            _ => return Err(broken("has no `fortran_order`")),
        }
        if kind.starts_with('>') {
            let problem = format!(
                "is big-endian (`{kind}`): save it with `array.astype(array.dtype.newbyteorder('<'))`"
            );
            return Err(refused(problem));
        }
        let kind = kind.trim_start_matches(['<', '|', '=']).to_owned();
        let array = Self { file, offset, kind, shape };
        if array.shape.is_empty() {
            return Err(array.refused("expected at least one dimension"));
        }
        if !array.kind.starts_with(['u', 'i', 'f', 'b']) {
            // Text or objects: `samples` and `labels` refuse them. The width in their type is not in bytes, or missing.
            return Ok(array);
        }
        let times = |product: Option<u64>, &size: &usize| product?.checked_mul(size as u64);
        let bytes = array.shape.iter().fold(array.kind[1..].parse().ok(), times);
        let end = bytes.and_then(|bytes| offset.checked_add(bytes)).filter(|&end| end > offset);
        let found = array.file.length;
        match end {
            Some(end) if end == found => Ok(array),
            Some(end) => Err(array
                .refused(&format!("has {found} bytes: expected {end}, as its header says; fetch it again"))),
            None => Err(array.refused("expected sizes above 0 that fit in a file")),
        }
    }

    fn refused(&self, problem: &str) -> DataError {
        let problem = format!("is an array of `{}` with the shape {:?}: {problem}", self.kind, self.shape);
        DataError::file(&self.file.path, problem)
    }

    fn samples(self) -> Result<Content, DataError> {
        let shape = match (&*self.kind, &*self.shape) {
            (kind @ ("f4" | "f8"), &[count, width]) => {
                let numbers = match kind {
                    "f4" => Reals::F32(Numbers::File(self.file, self.offset)),
                    _ => Reals::F64(Numbers::File(self.file, self.offset)),
                };
                return Ok(Rows { width, count, numbers }.standardised(&[]));
            }
            ("u1", &[_, height, width]) => [height, width, 1],
            ("u1", &[_, height, width, channels @ (1 | 3)]) => [height, width, channels],
            _ => {
                return Err(self.refused(
                    "expected `u1` images with the shape [N, height, width], or that with 1 or 3 levels a pixel, or `f4` or `f8` \
                     rows with the shape [N, columns]",
                ));
            }
        };
        Ok(Content::Images(Images::new(Numbers::File(self.file, self.offset), shape)))
    }

    fn labels(&self) -> Result<Vec<u32>, DataError> {
        let (is_signed, width) = match self.kind.split_at_checked(1) {
            Some((sign @ ("u" | "i"), width @ ("1" | "2" | "4" | "8"))) => {
                (sign == "i", width.parse::<usize>().expect("it is a digit"))
            }
            _ => return Err(self.refused(LABELS)),
        };
        let ([count] | [count, 1]) = *self.shape else { return Err(self.refused(LABELS)) };
        let bytes = self.file.read(self.offset, count * width)?;
        let labels = bytes.chunks_exact(width).enumerate().map(|(record, bytes)| {
            let is_negative = is_signed && bytes[width - 1] >= 0x80;
            let number = bytes.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
            u32::try_from(number).ok().filter(|_| !is_negative).ok_or_else(|| {
                let problem = format!("is no class: expected a number from 0 to {}", u32::MAX);
                DataError::record(&self.file.path, record, problem)
            })
        });
        labels.collect()
    }
}

const LABELS: &str = "expected labels, whole numbers with the shape [N]";

/// Returns the text that follows a key in a dictionary.
fn value<'a>(dictionary: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = dictionary.split_once(&format!("'{key}'"))?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

fn string<'a>(dictionary: &'a str, key: &str) -> Option<&'a str> {
    let (string, _) = value(dictionary, key)?.strip_prefix('\'')?.split_once('\'')?;
    Some(string)
}

/// Returns the dimensions in the tuple `shape`.
fn sizes(dictionary: &str) -> Option<Vec<usize>> {
    let (tuple, _) = value(dictionary, "shape")?.strip_prefix('(')?.split_once(')')?;
    let sizes = tuple.split(',').map(str::trim).filter(|size| !size.is_empty());
    sizes.map(|size| size.parse().ok()).collect()
}

#[cfg(test)]
mod tests;
