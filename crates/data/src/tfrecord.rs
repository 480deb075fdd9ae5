//! A data set of images in TFRecord files: selects the files and splits the records.

use std::path::Path;

use super::encoded::{EncodedImages, Store};
use super::held_out;
use super::records::Records;
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::schema::Schema;
use crate::source::Options;

/// Reads the frames of the records in the files that `path` names, or in its directories. Files with `tfrec` in their names are
/// those of a directory.
pub(super) fn read(path: &Path, options: &Options) -> Result<Dataset, DataError> {
    let (mut records, skips_damaged) = (Records::default(), options.on_bad_sample.skips());
    let wanted = (|name: &str| name.contains("tfrec"), "file with `tfrec` in its name");
    let parts = held_out::divided(path, wanted, "records", |file| records.add(file, skips_damaged))?;
    let classes = match options.classes {
        Some(0) => return Err(DataError::zero("the number of classes")),
        Some(classes) => classes,
        None => records.count_classes(skips_damaged)?,
    };
    records.classes = classes;
    // The classes are numbered by the writer of the records.
    EncodedImages::dataset(Store::Records(records), parts, options, (classes, Schema::default()), None)
}

#[cfg(test)]
mod tests;
