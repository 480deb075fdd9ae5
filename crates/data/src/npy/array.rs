//! Arrays in NumPy's format.
//!
//! A file is a magic number, a version, the length of the header, the header as a Python dictionary, then the numbers.

use std::path::PathBuf;
use std::sync::Arc;

use crate::byte_file::ByteFile;
use crate::error::DataError;
use crate::rows::Rows;
use crate::stored::{Content, Images, Levels};

/// The maximum size of a header, as in NumPy.
const MOST_OF_HEADER: usize = 10_000;

/// A row-major array of little-endian numbers.
pub(super) struct Array {
    file: ByteFile,
    /// The offset of the first number.
    offset: u64,
    /// The type of a number, such as `f4`.
    kind: String,
    /// The dimensions, at least one; all are above 0.
    pub(super) shape: Vec<usize>,
}

impl Array {
    pub(super) fn open(path: PathBuf) -> Result<Self, DataError> {
        let file = ByteFile::open(path)?;
        let refused = |problem: String| DataError::file(file.path(), problem);
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
        if length > MOST_OF_HEADER || offset > file.length() {
            return Err(broken(&format!("has a header of {length} bytes")));
        }
        let header = file.read(before, length)?;
        let header = str::from_utf8(&header).map_err(|_| broken("has a header that is no text"))?;
        let kind = string(header, "descr").ok_or_else(|| broken("has no simple `descr`"))?;
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
        array.check_length()?;
        Ok(array)
    }

    /// Checks that the file has the length that its header implies.
    fn check_length(&self) -> Result<(), DataError> {
        let width = self.kind.get(1..).and_then(|width| width.parse::<u64>().ok());
        let sizes = self.shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size as u64));
        let end =
            width.zip(sizes).and_then(|(width, sizes)| sizes.checked_mul(width)?.checked_add(self.offset));
        let found = self.file.length();
        match end {
            Some(end) if end == found && end > self.offset => Ok(()),
            Some(end) if end > self.offset => Err(self
                .refused(&format!("has {found} bytes: expected {end}, as its header says; fetch it again"))),
            _ => Err(self.refused("expected sizes above 0 that fit in a file")),
        }
    }

    /// Returns an error that describes the array.
    fn refused(&self, problem: &str) -> DataError {
        let problem = format!("is an array of `{}` with the shape {:?}: {problem}", self.kind, self.shape);
        DataError::file(self.file.path(), problem)
    }

    pub(super) fn samples(self) -> Result<Content, DataError> {
        let shape = match (&*self.kind, &*self.shape) {
            ("f4" | "f8", &[count, width]) => {
                let is_wide = self.kind == "f8";
                let Self { file, offset, .. } = self;
                let rows = Rows::in_file(file, offset, [count, width], is_wide);
                return Ok(Content::Rows(Arc::new(rows), [].into()));
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
        let Self { file, offset, .. } = self;
        Ok(Content::Images(Images::new(Levels::File(Arc::new(file), offset), shape)))
    }

    pub(super) fn labels(&self) -> Result<Vec<u32>, DataError> {
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
                DataError::record(self.file.path(), record, problem)
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

/// Returns the dimensions in the tuple `shape`, at least one.
fn sizes(dictionary: &str) -> Option<Vec<usize>> {
    let (tuple, _) = value(dictionary, "shape")?.strip_prefix('(')?.split_once(')')?;
    let sizes = tuple.split(',').map(str::trim).filter(|size| !size.is_empty());
    let sizes: Vec<usize> = sizes.map(|size| size.parse().ok()).collect::<Option<_>>()?;
    (!sizes.is_empty()).then_some(sizes)
}
