//! Images in files of TensorFlow's records. Only the frames are read when a data set is loaded; a record's bytes,
//! and whether they are undamaged, when a sample is made of it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use image::GrayImage;
use rayon::prelude::*;

use super::encoded::{EncodedImages, Store};
use super::example::Example;
use super::framing::{self, FOOTER_BYTES, HEADER_BYTES};
use super::split::nine_to_one;
use super::{DataError, Dataset, Kind, Options, Schema, Split};

/// Records in files, by their index over all files.
#[derive(Debug)]
pub(super) struct Records {
    files: Vec<(PathBuf, File)>,
    places: Vec<Place>,
    classes: usize,
}

/// Where a record is.
#[derive(Debug, Clone, Copy)]
struct Place {
    file: usize,
    /// Its index in the file.
    record: usize,
    /// The offset of its first byte.
    offset: u64,
    /// How many bytes it has.
    length: usize,
}

/// Reads the frames of the records in `path`, a file or a directory.
///
/// # Errors
///
/// If a file is unreadable or damaged, or there are too few records to train and to test on; if the number of classes
/// is not given, also if a record is damaged or has no label.
pub(super) fn read(path: &Path, options: &Options) -> Result<Dataset, DataError> {
    let mut records = Records { files: vec![], places: vec![], classes: 0 };
    let (mut train, mut test) = (vec![], vec![]);
    for file in files(path)? {
        let part = if is_held_out(&file) && path.is_dir() { &mut test } else { &mut train };
        part.extend(records.add(file)?);
    }
    if test.is_empty() {
        (train, test) = nine_to_one(train.len());
    }
    if train.is_empty() || test.is_empty() {
        let (path, found) = (path.into(), records.places.len());
        return Err(DataError::TooShort { path, what: "records", found, expected: 10 });
    }
    records.classes = match options.classes {
        Some(0) => return Err(DataError::Zero { option: "the number of classes" }),
        Some(classes) => classes,
        None => records.count_classes()?,
    };
    let classes = records.classes;
    let (train, test, size) =
        EncodedImages::both(Store::Records(records), (train, test), options.augmentation)?;
    let kind = Kind::Images { height: size.height, width: size.width, classes };
    // Whoever wrote the records has numbered the classes.
    Ok(Dataset { kind, train: Split::Encoded(train), test: Split::Encoded(test), schema: Schema::default() })
}

/// The file, or the files of records in the directory, in the order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let unreadable = |error| DataError::Read { path: path.into(), error };
    let mut files = vec![];
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        if name(&file).contains("tfrec") && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(DataError::Empty { path: path.into(), expected: "file with `tfrec` in its name" });
    }
    Ok(files)
}

fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().to_lowercase()
}

/// Whether a file's name says that it is to test on.
fn is_held_out(file: &Path) -> bool {
    let name = name(file);
    let mut words = name.split(|c: char| !c.is_alphanumeric());
    words.any(|word| ["test", "val", "validation"].contains(&word))
}

impl Records {
    /// Finds the records of another file, and returns their indices.
    fn add(&mut self, path: PathBuf) -> Result<std::ops::Range<usize>, DataError> {
        let unreadable = |error| DataError::Read { path: path.clone(), error };
        let file = File::open(&path).map_err(unreadable)?;
        let end = file.metadata().map_err(unreadable)?.len();
        let first = self.places.len();
        let mut start = 0;
        while start < end {
            let record = self.places.len() - first;
            let damaged =
                |problem: &str| DataError::Record { path: path.clone(), record, problem: problem.into() };
            let cut_off = || damaged("the file ends within it; fetch it again");
            if end - start < (HEADER_BYTES + FOOTER_BYTES) as u64 {
                return Err(cut_off());
            }
            let mut header = [0; HEADER_BYTES];
            file.read_exact_at(&mut header, start).map_err(unreadable)?;
            let length = framing::length(header).ok_or_else(|| {
                damaged("its header's checksum is wrong: the file is damaged, or is none of TFRecords")
            })?;
            let offset = start + HEADER_BYTES as u64;
            if length > end - offset - FOOTER_BYTES as u64 {
                return Err(cut_off());
            }
            self.places.push(Place { file: self.files.len(), record, offset, length: length as usize });
            start = offset + length + FOOTER_BYTES as u64;
        }
        self.files.push((path, file));
        Ok(first..self.places.len())
    }

    /// One more than the highest label.
    fn count_classes(&self) -> Result<usize, DataError> {
        let labels: Vec<_> = (0..self.places.len()).into_par_iter().map(|index| self.label(index)).collect();
        let most = labels.into_iter().try_fold(0, |most, label| Ok(label?.max(most)))?;
        Ok(most as usize + 1)
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.example(index)?.label().map_err(|problem| self.damaged(index, problem))
    }

    /// The image and the class in a record.
    pub(super) fn image(&self, index: usize) -> Result<(GrayImage, u32), DataError> {
        let damaged = |problem| self.damaged(index, problem);
        let example = self.example(index)?;
        let (image, label) = (example.image().map_err(damaged)?, example.label().map_err(damaged)?);
        if label as usize >= self.classes {
            let highest = self.classes - 1;
            return Err(damaged(format!("has the label {label}: expected one from 0 to {highest}")));
        }
        Ok((image, label))
    }

    fn example(&self, index: usize) -> Result<Example, DataError> {
        let place = self.places[index];
        let (path, file) = &self.files[place.file];
        let mut bytes = vec![0; place.length + FOOTER_BYTES];
        file.read_exact_at(&mut bytes, place.offset)
            .map_err(|error| DataError::Read { path: path.clone(), error })?;
        let (record, sum) = bytes.split_at(place.length);
        if framing::checksum(record).to_le_bytes() != sum {
            let problem = "its checksum is wrong: the file is damaged; fetch it again".into();
            return Err(self.damaged(index, problem));
        }
        Example::read(record).map_err(|problem| self.damaged(index, problem))
    }

    /// The checksum that a record bears; whether it is right is not looked at.
    pub(super) fn stored_checksum(&self, index: usize) -> Result<[u8; FOOTER_BYTES], DataError> {
        let place = self.places[index];
        let (path, file) = &self.files[place.file];
        let mut sum = [0; FOOTER_BYTES];
        file.read_exact_at(&mut sum, place.offset + place.length as u64)
            .map_err(|error| DataError::Read { path: path.clone(), error })?;
        Ok(sum)
    }

    fn damaged(&self, index: usize, problem: String) -> DataError {
        let place = self.places[index];
        DataError::Record { path: self.files[place.file].0.clone(), record: place.record, problem }
    }
}

#[cfg(test)]
mod tests;
