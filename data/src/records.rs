//! TensorFlow's records in files. Loading reads only their frames; their bytes are read and verified when a sample is made.

use std::ops::Range;
use std::path::PathBuf;

use image::DynamicImage;
use rayon::prelude::*;

use super::byte_file::{ByteFile, Compression};
use super::example::Example;
use super::framing::{self, FOOTER_BYTES, HEADER_BYTES};
use crate::error::DataError;
use crate::pipeline::part;

/// Records in files, by their index over all files.
#[derive(Debug, Default)]
pub(super) struct Records {
    files: Vec<ByteFile>,
    places: Vec<Place>,
    classes: usize,
}

/// The location of a record.
#[derive(Debug, Clone, Copy)]
struct Place {
    file: usize,
    /// Its index in the file.
    record: usize,
    /// The offset of its first byte.
    offset: u64,
    /// Its size.
    length: usize,
}

impl Records {
    /// Refuses labels that are not below the number of classes from now on.
    pub(super) fn set_classes(&mut self, classes: usize) {
        self.classes = classes;
    }

    /// Finds the records of another file, and returns their indices. Unpacks the file if TensorFlow compressed it.
    pub(super) fn add(&mut self, path: PathBuf) -> Result<Range<usize>, DataError> {
        let file = opened(path)?;
        let first = self.places.len();
        let mut start = 0;
        while start < file.length() {
            let record = self.places.len() - first;
            let damaged = |problem: &str| DataError::Record {
                path: file.path().into(),
                record,
                problem: problem.into(),
            };
            let cut_off = || damaged("the file ends within it; fetch it again");
            if file.length() - start < (HEADER_BYTES + FOOTER_BYTES) as u64 {
                return Err(cut_off());
            }
            let mut header = [0; HEADER_BYTES];
            file.read_into(start, &mut header)?;
            let length = framing::length(header).ok_or_else(|| {
                damaged("its header's checksum is wrong: the file is damaged, or not a TFRecord file")
            })?;
            let offset = start + HEADER_BYTES as u64;
            if length > file.length() - offset - FOOTER_BYTES as u64 {
                return Err(cut_off());
            }
            self.places.push(Place { file: self.files.len(), record, offset, length: length as usize });
            start = offset + length + FOOTER_BYTES as u64;
        }
        self.files.push(file);
        Ok(first..self.places.len())
    }

    /// One more than the highest label. Damaged records have none, if they may be skipped.
    pub(super) fn count_classes(&self, skips_damaged: bool) -> Result<usize, DataError> {
        let label = |index| match self.label(index) {
            Err(error) if skips_damaged && error.is_damage() => Ok(0),
            label => label,
        };
        let labels: Vec<_> = (0..self.places.len()).into_par_iter().map(label).collect();
        let most = labels.into_iter().try_fold(0, |most, label| Ok(label?.max(most)))?;
        Ok(most as usize + 1)
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.example(index)?.label().map_err(|problem| self.damaged(index, problem))
    }

    /// The image and the class of a record.
    pub(super) fn image(&self, index: usize) -> Result<(DynamicImage, u32), DataError> {
        let damaged = |problem| self.damaged(index, problem);
        let example = self.example(index)?;
        let (image, label) =
            (part("decoding", || example.image()).map_err(damaged)?, example.label().map_err(damaged)?);
        if label as usize >= self.classes {
            let highest = self.classes - 1;
            return Err(damaged(format!("has the label {label}: expected one from 0 to {highest}")));
        }
        Ok((image, label))
    }

    fn example(&self, index: usize) -> Result<Example, DataError> {
        let place = self.places[index];
        let bytes = self.files[place.file].read(place.offset, place.length + FOOTER_BYTES)?;
        let (record, sum) = bytes.split_at(place.length);
        if framing::checksum(record).to_le_bytes() != sum {
            let problem = "its checksum is wrong: the file is damaged; fetch it again".into();
            return Err(self.damaged(index, problem));
        }
        Example::read(record).map_err(|problem| self.damaged(index, problem))
    }

    /// The stored checksum of a record, not verified.
    pub(super) fn stored_checksum(&self, index: usize) -> Result<[u8; FOOTER_BYTES], DataError> {
        let place = self.places[index];
        let mut sum = [0; FOOTER_BYTES];
        self.files[place.file].read_into(place.offset + place.length as u64, &mut sum)?;
        Ok(sum)
    }

    fn damaged(&self, index: usize, problem: String) -> DataError {
        let place = self.places[index];
        DataError::Record { path: self.files[place.file].path().into(), record: place.record, problem }
    }
}

/// Opens a file of records, unpacked if it is compressed and is not one as it is.
fn opened(path: PathBuf) -> Result<ByteFile, DataError> {
    let file = ByteFile::open(path)?;
    let start = file.start()?;
    let is_plain = start.first_chunk().is_some_and(|&header| framing::length(header).is_some());
    match Compression::of(&start).filter(|_| !is_plain) {
        Some(compression) => file.unpacked(compression),
        None => Ok(file),
    }
}
