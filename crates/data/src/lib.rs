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

// Data sets: their sources, parts and batches.
mod address;
mod batch;
mod dataset;
mod error;
mod load;
mod schema;
mod source;
mod split;

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

// Shared by formats: samples in memory, samples in files, and damaged ones.
mod bad;
mod encoded;
mod example;
mod held_out;
mod rows;
mod stored;
mod stored_text;

// Images: decoding, resizing, normalising, augmenting.
mod augment;
mod decoding;
mod fitting;
mod normalization;
mod pixels;
mod survey;

// Local and remote files, and caches of them.
mod byte_file;
mod cache;
mod disk;
mod files;
pub mod framing;
mod kept;
mod once;
mod remote;
mod snapshot;

// Prefetching of batches.
pub mod pipeline;
mod random;
mod stop;

#[cfg(test)]
mod testing;

pub use address::Service;
pub use augment::{Affine, Augmentation, Crop, Erase, Jitter, Mirror, Transform};
pub use bad::{OnBadSample, Skipped};
pub use batch::{Batch, Inputs, Pass, Values};
pub use cache::Cache;
pub use dataset::{Dataset, Kind};
pub use encoded::EncodedImages;
pub use error::{DataError, with_causes};
pub use kept::SnapshotReport;
pub use load::{load, load_as};
pub use normalization::{Normalization, Normalize};
pub use pipeline::{Depth, Pipeline, Threads};
pub use pixels::Image;
pub use random::Random;
pub use schema::{Column, Schema};
pub use snapshot::{Compression, SnapshotOptions, Snapshotted};
pub use source::{Options, Source};
pub use split::{Split, order};
pub use stop::Stop;
pub use stored::StoredSamples;
