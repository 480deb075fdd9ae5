//! Loads a data set; each source has its own reader.

use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::remote::local;
use crate::schema::Schema;
use crate::source::{Options, Source};
use crate::table::Format;
use crate::{cifar, digits, folder, idx, npy, table, text, tfrecord, webdataset};

/// Reads or generates a data set. Remote sources are mirrored into the [cache](Options::cache) first.
///
/// # Errors
///
/// If a file is missing, unreadable or invalid, the options leave a split without samples, a server or the cache fails, or the source needs a feature
/// that is not compiled in. Also for a [`Source::Service`], which `unisono_data_service::load` reads.
pub fn load(source: &Source, options: &Options) -> Result<Dataset, DataError> {
    read(source, options, None)
}

/// Loads data for a model that was trained with `schema`. Classes get the numbers of the schema. The columns of a table are found by name, and
/// standardised by the statistics of the schema.
///
/// # Errors
///
/// The errors of [`load`], and if a class or a column does not match `schema`.
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

/// Reads a data set. Uses the `known` schema and number of classes, if given.
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

/// Returns an error for statistics that the source would not use.
fn refuse_normalization(source: &Source, options: &Options) -> Result<(), DataError> {
    let is_normalized = source.has_image_files() || matches!(source, Source::Npy(_) | Source::Cifar(_));
    match &options.normalize {
        Some(_) if !is_normalized => Err(DataError::other(format!(
            "{source} cannot be normalised by other statistics (--normalize): expected images in files, arrays or CIFAR's files"
        ))),
        _ => Ok(()),
    }
}
