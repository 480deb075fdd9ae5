//! The project's sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns all Rust files below a folder of the project, or a single file, each with its relative path and its text.
pub(crate) fn files(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut files, mut left) = (Vec::new(), vec![root.clone()]);
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            left.extend(entries.map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            files.push((path.strip_prefix(&root).unwrap().to_owned(), text));
        }
    }
    assert!(!files.is_empty(), "{folder} has files");
    files
}
