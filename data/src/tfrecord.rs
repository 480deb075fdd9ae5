//! A data set of images in TFRecord files: selects the files and splits the records.

use std::fs;
use std::path::{Path, PathBuf};

use super::encoded::{EncodedImages, Store};
use super::records::Records;
use super::split::nine_to_one;
use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::schema::Schema;
use crate::source::Options;
use crate::split::Split;

/// Reads the frames of the records in `path`, a file or a directory.
///
/// # Errors
///
/// If a file is unreadable or damaged, or there are too few records for training and testing; if the number of classes is
/// not given, also if a record is damaged or has no label.
pub(super) fn read(path: &Path, options: &Options) -> Result<Dataset, DataError> {
    let mut records = Records::default();
    let (mut train, mut test) = (vec![], vec![]);
    for file in files(path)? {
        let part = if is_held_out(&file) && path.is_dir() { &mut test } else { &mut train };
        part.extend(records.add(file)?);
    }
    if test.is_empty() {
        (train, test) = nine_to_one(train.len());
    }
    if train.is_empty() || test.is_empty() {
        let (path, found) = (path.into(), records.len());
        return Err(DataError::TooShort { path, what: "records", found, expected: 10 });
    }
    let classes = match options.classes {
        Some(0) => return Err(DataError::Zero { option: "the number of classes" }),
        Some(classes) => classes,
        None => records.count_classes()?,
    };
    records.set_classes(classes);
    let (train, test, size) = EncodedImages::both(Store::Records(records), (train, test), options)?;
    let kind = Kind::Images { height: size.height, width: size.width, channels: size.channels, classes };
    // The classes are numbered by the writer of the records.
    Ok(Dataset { kind, train: Split::Encoded(train), test: Split::Encoded(test), schema: Schema::default() })
}

/// The file, or the TFRecord files in the directory, sorted by name.
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

/// Whether a file is for testing, by its name.
fn is_held_out(file: &Path) -> bool {
    let name = name(file);
    let mut words = name.split(|c: char| !c.is_alphanumeric());
    words.any(|word| ["test", "val", "validation"].contains(&word))
}

#[cfg(test)]
mod tests;
