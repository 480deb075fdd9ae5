//! Images in TFRecord files. Loading reads only the frames of records. Their bytes are read and verified when a sample is made.

use std::collections::HashMap;
use std::hash::Hasher;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use image::GrayImage;
use prost::Message;
use rayon::prelude::*;

use super::byte_file::{ByteFile, Compression, Reader, Unpacking};
use super::decoding::{FORMATS, Raw, is_encoded};
use super::encoded::{EncodedImages, Store};
use super::files::divided;
use super::framing::{self, FOOTER_BYTES, HEADER_BYTES};
use crate::{DataError, Dataset, Options, Schema};

/// The maximum size of a record, above that of the largest images. A damaged or malicious file may claim any length.
const MOST_RECORD_BYTES: u64 = 256 << 20;
const WRONG_CHECKSUM: &str = "its checksum is wrong: the file is damaged; fetch it again";

/// Reads the frames of the records in the files that `path` names. Of a directory, reads the files with `tfrec` in their names.
pub(super) fn read(path: &Path, options: &Options) -> Result<Dataset, DataError> {
    let (mut records, skips_damaged) = (Records::default(), options.on_bad_sample.skips());
    let wanted = (|name: &str| name.contains("tfrec"), "file with `tfrec` in its name");
    let parts = divided(path, wanted, "records", |file| records.add(file, skips_damaged))?;
    let classes = options.classes.map_or_else(|| records.count_classes(skips_damaged), Ok)?;
    records.classes = classes;
    // The classes are numbered by the writer of the records.
    EncodedImages::dataset(records, parts, options, (classes, Schema::default()), None)
}

/// Records in files, by their index over all files.
#[derive(Debug, Default)]
struct Records {
    files: Vec<ByteFile>,
    places: Vec<Place>,
    /// The number of classes, below which labels must be.
    classes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    file: usize,
    /// Its index in the file.
    record: usize,
    /// The offset of its first byte.
    offset: u64,
    length: usize,
}

impl Records {
    /// Finds the records of another file, and returns their indices. A compressed file is decompressed, and its records are verified on the way.
    /// Wrong checksums are errors unless damaged records may be skipped.
    fn add(&mut self, path: PathBuf, skips_damaged: bool) -> Result<Range<usize>, DataError> {
        let file = ByteFile::open(path.clone())?;
        let start = file.start()?;
        let is_plain = start.first_chunk().is_some_and(|&header| framing::length(header).is_some());
        let (file, frames) = match Compression::of(&start).filter(|_| !is_plain) {
            Some(compression) => {
                let mut record = vec![];
                let pass = |content: &mut Unpacking<'_>, length| {
                    record.clear();
                    let framed = length + FOOTER_BYTES as u64;
                    let read = content.take(framed).read_to_end(&mut record)? as u64;
                    Ok((read == framed).then(|| framing::record(&record).is_some()))
                };
                file.unpacked(compression, |content| frames(&path, content, pass, skips_damaged))?
            }
            None => {
                // Records of plain files are verified when they are read.
                let pass = |content: &mut Reader<_>, length| {
                    let end = content.seek(SeekFrom::Current(length as i64 + FOOTER_BYTES as i64))?;
                    Ok((end <= file.length).then_some(true))
                };
                let frames = frames(&path, &mut file.reader(), pass, skips_damaged)?;
                (file, frames)
            }
        };
        let (first, number) = (self.places.len(), self.files.len());
        let place = |(record, (offset, length))| Place { file: number, record, offset, length };
        self.places.extend(frames.into_iter().enumerate().map(place));
        self.files.push(file);
        Ok(first..self.places.len())
    }

    /// Returns one more than the highest label. Skips damaged records if that is allowed.
    fn count_classes(&self, skips_damaged: bool) -> Result<usize, DataError> {
        let label = |index| match self.label(index) {
            Err(error) if skips_damaged && error.is_damage() => Ok(0),
            label => label,
        };
        let labels: Vec<_> = (0..self.places.len()).into_par_iter().map(label).collect();
        let most = labels.into_iter().try_fold(0, |most, label| Ok(label?.max(most)))?;
        Ok(most as usize + 1)
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.example(index)?.label().map_err(|problem| self.damaged(index, &problem))
    }

    fn example(&self, index: usize) -> Result<Example, DataError> {
        let place = self.places[index];
        let bytes = self.files[place.file].read(place.offset, place.length + FOOTER_BYTES)?;
        let record = framing::record(&bytes).ok_or_else(|| self.damaged(index, WRONG_CHECKSUM))?;
        Example::read(record).map_err(|problem| self.damaged(index, &problem))
    }
}

impl Store for Records {
    fn raw(&self, index: usize) -> Result<(Raw, u32), DataError> {
        let damaged = |problem: String| self.damaged(index, &problem);
        let example = self.example(index)?;
        let (image, label) = (example.image().map_err(damaged)?, example.label().map_err(damaged)?);
        if label as usize >= self.classes {
            let highest = self.classes - 1;
            return Err(damaged(format!("has the label {label}: expected one from 0 to {highest}")));
        }
        Ok((image, label))
    }

    fn damaged(&self, index: usize, problem: &str) -> DataError {
        let place = self.places[index];
        DataError::record(&self.files[place.file].path, place.record, problem)
    }

    /// Hashes the checksum of a record, without verifying it.
    fn hash(&self, index: usize, hasher: &mut dyn Hasher) -> Result<(), DataError> {
        let place = self.places[index];
        hasher.write(&self.files[place.file].read(place.offset + place.length as u64, FOOTER_BYTES)?);
        Ok(())
    }

    fn paths(&self, _: &[usize]) -> Vec<&Path> {
        vec![]
    }
}

/// Returns the offset and length of each record. `pass` skips a record and its checksum. It returns whether they match, as far as it verifies them,
/// or `None` if the content ends before.
fn frames<R: Read>(
    path: &Path,
    content: &mut R,
    mut pass: impl FnMut(&mut R, u64) -> io::Result<Option<bool>>,
    skips_damaged: bool,
) -> Result<Vec<(u64, usize)>, DataError> {
    let (mut frames, mut start) = (vec![], 0);
    loop {
        let damaged = |problem: &str| DataError::record(path, frames.len(), problem);
        let cut_off = || damaged("the file ends within it; fetch it again");
        let mut header = vec![];
        content.take(HEADER_BYTES as u64).read_to_end(&mut header).map_err(DataError::read(path))?;
        if header.is_empty() {
            return Ok(frames);
        }
        let header = header.try_into().map_err(|_| cut_off())?;
        let length = framing::length(header).ok_or_else(|| {
            damaged("its header's checksum is wrong: the file is damaged, or not a TFRecord file")
        })?;
        if length > MOST_RECORD_BYTES {
            return Err(damaged(&format!("it has {length} bytes: expected at most {MOST_RECORD_BYTES}")));
        }
        let is_good = pass(content, length).map_err(DataError::read(path))?.ok_or_else(cut_off)?;
        if !is_good && !skips_damaged {
            return Err(damaged(WRONG_CHECKSUM));
        }
        let offset = start + HEADER_BYTES as u64;
        frames.push((offset, length as usize));
        start = offset + length + FOOTER_BYTES as u64;
    }
}

/// `tf.train.Example`, the content of TensorFlow's records. The field numbers are those of TensorFlow's `example.proto` and `feature.proto`. Lists
/// of floating-point numbers are not read.
#[derive(Clone, PartialEq, Message)]
struct Example {
    #[prost(message, optional, tag = "1")]
    features: Option<Features>,
}

#[derive(Clone, PartialEq, Message)]
struct Features {
    #[prost(map = "string, message", tag = "1")]
    feature: HashMap<String, Feature>,
}

/// One of the lists.
#[derive(Clone, PartialEq, Message)]
struct Feature {
    #[prost(message, optional, tag = "1")]
    bytes: Option<BytesList>,
    #[prost(message, optional, tag = "3")]
    integers: Option<Int64List>,
}

#[derive(Clone, PartialEq, Message)]
struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    value: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    value: Vec<i64>,
}

/// Accepted names of features, the more specific first.
const IMAGE: [&str; 2] = ["image/encoded", "image"];
const LABEL: [&str; 2] = ["image/class/label", "label"];
const HEIGHT: [&str; 2] = ["image/height", "height"];
const WIDTH: [&str; 2] = ["image/width", "width"];

impl Example {
    fn read(record: &[u8]) -> Result<Self, String> {
        Self::decode(record).map_err(|error| format!("does not contain a `tf.train.Example`: {error}"))
    }

    fn feature(&self, name: &str) -> Option<&Feature> {
        self.features.as_ref()?.feature.get(name)
    }

    fn integer(&self, names: [&str; 2]) -> Option<i64> {
        names.iter().find_map(|name| self.feature(name)?.integers.as_ref()?.value.first().copied())
    }

    fn label(&self) -> Result<u32, String> {
        let label = self.integer(LABEL).ok_or_else(|| self.lacks(LABEL, "int64"))?;
        label.try_into().map_err(|_| format!("has the label {label}: expected one from 0 to {}", u32::MAX))
    }

    /// Returns the image. Bytes in no known format are grey levels, with the height and width in the example, or of a square image.
    fn image(&self) -> Result<Raw, String> {
        let bytes = IMAGE.iter().find_map(|name| self.feature(name)?.bytes.as_ref()?.value.first());
        let bytes = bytes.ok_or_else(|| self.lacks(IMAGE, "bytes"))?;
        if is_encoded(bytes) {
            return Ok(Raw::Encoded(bytes.clone()));
        }
        let (height, width) = match (self.integer(HEIGHT), self.integer(WIDTH)) {
            (Some(height), Some(width)) => (height, width),
            _ => (bytes.len().isqrt() as i64, bytes.len().isqrt() as i64),
        };
        let fits = height > 0 && width > 0 && height.checked_mul(width) == Some(bytes.len() as i64);
        let sides = (u32::try_from(width), u32::try_from(height));
        if let (true, (Ok(width), Ok(height))) = (fits, sides)
            && let Some(image) = GrayImage::from_raw(width, height, bytes.clone())
        {
            return Ok(Raw::Grey(image));
        }
        Err(format!(
            "has an image of {} bytes: expected {FORMATS}, or {height}x{width} grey levels (as `{}` and `{}` say, or else \
             a square)",
            bytes.len(),
            HEIGHT[0],
            WIDTH[0]
        ))
    }

    fn lacks(&self, [first, second]: [&str; 2], kind: &str) -> String {
        let mut names: Vec<_> = self.features.iter().flat_map(|features| features.feature.keys()).collect();
        names.sort();
        format!("has no feature `{first}` or `{second}` of {kind}: expected one of them; there are {names:?}")
    }
}

#[cfg(test)]
mod tests;
