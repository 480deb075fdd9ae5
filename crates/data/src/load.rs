//! Loads a data set; each source has its own reader.

use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::remote::local;
use crate::schema::Schema;
use crate::source::{Options, Source};
use crate::table::Format;
use crate::{cifar, digits, folder, idx, npy, table, text, tfrecord, webdataset};

/// Reads or generates a data set. What is on a server is mirrored into the [cache](Options::cache) first.
///
/// # Errors
///
/// If a file is missing, unreadable or invalid, or if the options leave a split
/// without samples; if a server or the cache fails; if the source needs a feature that is not compiled in, or is a
/// [`Source::Service`], which `unisono_data_service::load` reads.
pub fn load(source: &Source, options: &Options) -> Result<Dataset, DataError> {
    read(source, options, None)
}

/// Loads data for a model that was trained with `schema`: classes have its numbers, in any order here, and the columns
/// of a table are found by name and standardised by its statistics.
///
/// # Errors
///
/// As [`load`]; also if a class or a column does not match `schema`.
pub fn load_as(
    source: &Source,
    options: &Options,
    kind: &Kind,
    schema: &Schema,
) -> Result<Dataset, DataError> {
    let known = match *kind {
        Kind::Table { classes, .. } if source.is_table() || matches!(source, Source::Npy(_)) => classes,
        Kind::Images { classes, .. } if matches!(source, Source::Images(_)) => classes,
        _ => return load(source, options),
    };
    read(source, options, Some((schema, known)))
}

/// Reads a data set, for a model with a known schema and number of classes or of its own.
fn read(source: &Source, options: &Options, known: Option<(&Schema, usize)>) -> Result<Dataset, DataError> {
    refuse_normalization(source, options)?;
    match &*local(source, &options.cache)? {
        Source::Digits => digits::draw(options),
        Source::Idx(directory) => idx::read(directory, options),
        Source::Text(files) => text::read(files, options),
        Source::Csv(files) => table::read(Format::Csv, files, options, known),
        #[cfg(feature = "parquet")]
        Source::Parquet(files) => table::read(Format::Parquet, files, options, known),
        #[cfg(feature = "arrow")]
        Source::Arrow(files) => table::read(Format::Arrow, files, options, known),
        Source::TfRecord(path) => tfrecord::read(path, options),
        Source::WebDataset(path) => webdataset::read(path, options),
        Source::Npy(directory) => npy::read(directory, options, known),
        Source::Images(directory) => folder::read(directory, options, known),
        Source::Cifar(directory) => cifar::read(directory, options),
        Source::Service(_) => Err(DataError::other(format!(
            "`{source}` is not on this machine: load it with `unisono_data_service`"
        ))),
        #[cfg(not(all(feature = "parquet", feature = "arrow")))]
        Source::Parquet(_) | Source::Arrow(_) => {
            unreachable!("`local` refuses sources whose features are missing")
        }
    }
}

/// Refuses statistics for levels where nothing would be normalised by them.
fn refuse_normalization(source: &Source, options: &Options) -> Result<(), DataError> {
    let is_normalized = source.has_image_files() || matches!(source, Source::Npy(_) | Source::Cifar(_));
    match &options.normalize {
        Some(_) if !is_normalized => Err(DataError::other(format!(
            "{source} cannot be normalised by other statistics (--normalize): expected images in files, arrays or CIFAR's files"
        ))),
        _ => Ok(()),
    }
}
