//! Data sets of images in files of their own format.

use super::encoded::{EncodedImages, Store};
use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::schema::Schema;
use crate::source::Options;
use crate::split::Split;

/// The data set of the images in a store: those to train on and those held out, given by their indices. `schema` names the classes.
///
/// # Errors
///
/// As [`EncodedImages::both`].
pub(super) fn dataset(
    store: Store,
    parts: (Vec<usize>, Vec<usize>),
    options: &Options,
    (classes, schema): (usize, Schema),
) -> Result<Dataset, DataError> {
    let (train, test, size) = EncodedImages::both(store, parts, options)?;
    let kind = Kind::Images { height: size.height, width: size.width, channels: size.channels, classes };
    let schema = Schema { normalization: train.normalization().cloned(), ..schema };
    Ok(Dataset { kind, train: Split::Encoded(train), test: Split::Encoded(test), schema })
}
