//! Data sets: sources, splits, batches, and the [pipeline] that prefetches batches.
//!
//! ```
//! use std::sync::Arc;
//! use unisono_data::{DataError, Options, Pass, Pipeline, Source, Threads};
//!
//! let options = Options { train_samples: 100, test_samples: 10, ..Options::default() };
//! let dataset = Arc::new(unisono_data::load(&Source::Digits, &options)?);
//! let (seed, epoch) = (1, 0);
//! let order = dataset.train.order(seed, epoch);
//! let batches: Vec<_> = order.chunks(32).map(<[usize]>::to_vec).collect();
//! // Batches are made on several threads, ahead of the loop below.
//! let on_threads = Arc::clone(&dataset);
//! let pass = Pass::Training { seed, epoch };
//! let input = Pipeline::of(batches).map(Threads::Auto, move |own| on_threads.train.batch(&own, pass));
//! let mut samples = 0;
//! for batch in input {
//!     samples += batch?.samples;
//! }
//! assert_eq!(samples, 100);
//! # Ok::<(), DataError>(())
//! ```
//!
//! Everything here is plain Rust. Source, seed and epoch determine every batch of every rank, so ranks never
//! communicate about data.

// Only the mapping of snapshot files needs unsafe code.
#![deny(unsafe_code)]

// Data sets: their sources, parts and batches, and samples in files and in memory, also damaged ones.
mod bad;
mod batch;
mod dataset;
mod encoded;
mod error;
mod source;
mod split;
mod stored;

// Formats, one file each.
mod cifar;
mod digits;
mod folder;
mod idx;
mod npy;
mod table;
mod text;
mod tfrecord;
mod webdataset;

// Images: decoding, resizing, normalising, augmenting.
mod augment;
mod decoding;
mod normalization;
mod pixels;
mod survey;

// Local and remote files, and caches of them.
mod byte_file;
mod files;
pub mod framing;
mod kept;
mod once;
mod remote;
mod snapshot;

// Prefetching of batches.
pub mod pipeline;
mod random;

#[cfg(test)]
mod testing;

pub use augment::{Affine, Augmentation, Crop, Erase, Jitter, Mirror, Transform};
pub use bad::{OnBadSample, Skipped};
pub use batch::{Batch, Inputs, Pass, Values};
pub use dataset::{Column, Dataset, Kind, Schema};
pub use encoded::EncodedImages;
pub use error::{DataError, with_causes};
pub use kept::SnapshotReport;
pub use normalization::{Normalization, Normalize};
pub use once::sync_directory;
pub use pipeline::{Depth, Pipeline, Threads};
pub use pixels::Image;
pub use random::Random;
pub use snapshot::{Compression, SnapshotOptions, Snapshotted};
pub use source::{Cache, Options, Service, Source, Stop};
pub use split::{Split, order};
pub use stored::StoredSamples;

/// Reads or generates a data set. Remote sources are mirrored into the [cache](Options::cache) first.
///
/// # Errors
/// If a file is missing, unreadable or invalid, the options leave a split without samples, a server or the cache fails, or the source needs a feature
/// that is not compiled in. Also for a [`Source::Service`], which `unisono_data_service::load` reads.
pub fn load(source: &Source, options: &Options) -> Result<Dataset, DataError> {
    read(source, options, None)
}

/// Loads data for a model that was trained with `schema`. Classes get the numbers of the schema. The columns of a table are found by name, and
/// standardised by the statistics of the schema.
///
/// # Errors
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

/// Reads a data set, with the `known` schema and number of classes of a model, if given.
fn read(source: &Source, options: &Options, known: Option<(&Schema, usize)>) -> Result<Dataset, DataError> {
    if options.classes == Some(0) {
        return Err(DataError::zero("the number of classes"));
    }
    refuse_normalization(source, options)?;
    match &*remote::local(source, &options.cache)? {
        Source::Digits => digits::draw(options),
        Source::Idx(directory) => idx::read(directory, options),
        Source::Text(files) => text::read(files, options),
        source @ (Source::Csv(_) | Source::Parquet(_) | Source::Arrow(_)) => {
            table::read(source, options, known)
        }
        Source::TfRecord(path) => tfrecord::read(path, options),
        Source::WebDataset(path) => webdataset::read(path, options),
        Source::Npy(directory) => npy::read(directory, options, known),
        Source::Images(directory) => folder::read(directory, options, known),
        Source::Cifar(directory) => cifar::read(directory, options),
        Source::Service(_) => Err(DataError::other(format!(
            "`{source}` is not on this machine: load it with `unisono_data_service`"
        ))),
    }
}

fn refuse_normalization(source: &Source, options: &Options) -> Result<(), DataError> {
    let is_normalized = source.has_image_files() || matches!(source, Source::Npy(_) | Source::Cifar(_));
    match &options.normalize {
        Some(_) if !is_normalized => Err(DataError::other(format!(
            "{source} cannot be normalised by other statistics (--normalize): expected images in files, arrays or CIFAR's files"
        ))),
        _ => Ok(()),
    }
}
