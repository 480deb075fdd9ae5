//! Selects the held-out samples in files.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::files::{check_distinct, entries, is_hidden, named};
use crate::split::nine_to_one;

/// The names of held-out parts.
pub(super) const WORDS: [&str; 3] = ["test", "val", "validation"];

/// Divides the samples of the files that `path` names, which `add` counts, into training and held-out ones. Samples of files with the word `test`,
/// `val` or `validation` in their names are held out. Without such files, or if `path` is a single file, every tenth sample is held out. A directory
/// stands for its files whose lowercase names are wanted, and that are not hidden.
pub(super) fn divided(
    path: &Path,
    (is_wanted, expected): (impl Fn(&str) -> bool, &str),
    what: &str,
    mut add: impl FnMut(PathBuf) -> Result<Range<usize>, DataError>,
) -> Result<(Vec<usize>, Vec<usize>), DataError> {
    let mut files = vec![];
    for path in named(path)? {
        if !path.is_dir() {
            files.push(path);
            continue;
        }
        // Links to nowhere are reported when they are opened.
        let is_file = |file: &Path| !is_hidden(file) && !file.is_dir();
        let within = entries(&path, |file| is_wanted(&lowercase_name(file)) && is_file(file))?;
        if within.is_empty() {
            return Err(DataError::file(path, format!("contains no {expected}")));
        }
        files.extend(within);
    }
    check_distinct(&files, path)?;
    let (mut train, mut test) = (vec![], vec![]);
    let are_many = files.len() > 1 || path.is_dir();
    for file in files {
        let part = if are_many && is_held_out(&file) { &mut test } else { &mut train };
        part.extend(add(file)?);
    }
    if test.is_empty() {
        (train, test) = nine_to_one(train.len());
    }
    if test.is_empty() {
        return Err(DataError::too_short(path, what, train.len(), 10));
    }
    if train.is_empty() {
        let words = WORDS.join("`, `");
        let problem =
            format!("all {what} are held out, by `{words}` in the names of files: expected others too");
        return Err(DataError::file(path, problem));
    }
    Ok((train, test))
}

fn lowercase_name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().to_lowercase()
}

fn is_held_out(file: &Path) -> bool {
    let name = lowercase_name(file);
    let mut words = name.split(|c: char| !c.is_alphanumeric());
    words.any(|word| WORDS.contains(&word))
}
