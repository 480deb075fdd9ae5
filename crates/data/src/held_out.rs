//! The choice of samples in files that are held out.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::files::lowercase_name;
use crate::split::nine_to_one;

/// Divides the samples of `files`, which `add` counts, into training and held-out ones: those of files with the word `test`,
/// `val` or `validation` in their names are held out. If there is none, or `path` is a single file, every tenth sample is.
pub(super) fn divided(
    path: &Path,
    files: Vec<PathBuf>,
    what: &'static str,
    mut add: impl FnMut(PathBuf) -> Result<Range<usize>, DataError>,
) -> Result<(Vec<usize>, Vec<usize>), DataError> {
    let (mut train, mut test) = (vec![], vec![]);
    let are_many = files.len() > 1 || path.is_dir();
    for file in files {
        let part = if are_many && is_held_out(&file) { &mut test } else { &mut train };
        part.extend(add(file)?);
    }
    if test.is_empty() {
        (train, test) = nine_to_one(train.len());
    }
    if train.is_empty() || test.is_empty() {
        let found = train.len() + test.len();
        return Err(DataError::too_short(path, what, found, 10));
    }
    Ok((train, test))
}

/// Returns whether a file is for testing, by its name.
fn is_held_out(file: &Path) -> bool {
    let name = lowercase_name(file);
    let mut words = name.split(|c: char| !c.is_alphanumeric());
    words.any(|word| ["test", "val", "validation"].contains(&word))
}
