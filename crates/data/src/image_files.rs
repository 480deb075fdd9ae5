//! Data sets of images in files of their own format.

use std::sync::Arc;

use super::encoded::{EncodedImages, Store};
use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::schema::Schema;
use crate::source::Options;
use crate::split::Split;

/// Returns the data set of the images in a store: those to train on and those held out, given by their indices. `schema` names the
/// classes. `notice` tells the user how they were found.
pub(super) fn dataset(
    store: Store,
    parts: (Vec<usize>, Vec<usize>),
    options: &Options,
    (classes, schema): (usize, Schema),
    notice: Option<String>,
) -> Result<Dataset, DataError> {
    let (train, test, [height, width, channels]) = EncodedImages::both(store, parts, options, notice)?;
    let kind = Kind::Images { height, width, channels, classes };
    let schema = Schema { normalization: train.normalization().cloned(), ..schema };
    Ok(Dataset { kind, train: Arc::new(train), test: Arc::new(test), schema })
}
