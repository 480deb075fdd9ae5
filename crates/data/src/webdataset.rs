//! A data set of images in tar files, as WebDataset writes them.

use std::path::Path;

use super::encoded::{EncodedImages, Store};
use super::held_out;
use super::members::Members;
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::schema::Schema;
use crate::source::Options;

/// Reads the headers of the tar files that `path` names, or of those in its directories.
pub(super) fn read(path: &Path, options: &Options) -> Result<Dataset, DataError> {
    let is_shard = |name: &str| [".tar", ".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end));
    let wanted = (is_shard, "file whose name ends in .tar, .tar.gz or .tgz");
    let mut members = Members::default();
    let parts = held_out::divided(path, wanted, "samples", |file| members.add(file))?;
    let classes = members.classes(options.classes)?;
    // The classes are numbered by the writer of the files.
    EncodedImages::dataset(Store::Members(members), parts, options, (classes, Schema::default()), None)
}
