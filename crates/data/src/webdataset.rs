//! A data set of images in tar files, as WebDataset writes them.

use std::path::Path;

use super::encoded::{EncodedImages, Store};
use super::members::Members;
use super::{files, held_out};
use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::schema::Schema;
use crate::source::Options;
use crate::split::Split;

/// Reads the headers of the tar files that `path` names, or of those in its directories.
///
/// # Errors
///
/// If a file is unreadable or damaged, a sample has no image or no class, or there are too few samples for training and
/// testing.
pub(super) fn read(path: &Path, options: &Options) -> Result<Dataset, DataError> {
    let is_shard = |name: &str| [".tar", ".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end));
    let files = files::named_or_in(path, is_shard, "file whose name ends in .tar, .tar.gz or .tgz")?;
    let mut members = Members::default();
    let parts = held_out::divided(path, files, "samples", |file| members.add(file))?;
    let classes = members.classes(options.classes)?;
    let (train, test, size) = EncodedImages::both(Store::Members(members), parts, options)?;
    let kind = Kind::Images { height: size.height, width: size.width, channels: size.channels, classes };
    // The classes are numbered by the writer of the files.
    Ok(Dataset { kind, train: Split::Encoded(train), test: Split::Encoded(test), schema: Schema::default() })
}
