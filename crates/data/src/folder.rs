//! Images in folders, one folder per class.

use std::path::{Path, PathBuf};

use super::decoding::{EXTENSIONS, extensions};
use super::encoded::{EncodedImages, Files};
use super::files::{HELD_OUT, entries, is_hidden};
use super::split::nine_to_one;
use crate::{DataError, Dataset, Options, Schema};

/// Finds the images in `directory`, and reads the headers of some for the image size. Classes are numbered by the schema and the number of classes in
/// `known`, or else in the order of their names.
/// Skips folders in a class and files with the extension of no image format, and reports them. Skips hidden files and folders silently.
pub(super) fn read(
    directory: &Path,
    options: &Options,
    known: Option<(&Schema, usize)>,
) -> Result<Dataset, DataError> {
    let to_train = directory.join("train");
    let root = if to_train.is_dir() { &to_train } else { directory };
    let parts = HELD_OUT.map(|part| directory.join(part));
    let to_test = parts.into_iter().find(|part| part.is_dir() && to_train.is_dir());
    let folders = classes(root)?;
    let (labels, classes, schema): (Vec<u32>, _, _) = match known {
        Some((schema, classes)) => {
            let number = |folder: &PathBuf| {
                let number = schema.number(&folder.to_string_lossy(), classes);
                number.map_err(|problem| DataError::file(root.join(folder), problem))
            };
            (folders.iter().map(number).collect::<Result<_, _>>()?, classes, schema.clone())
        }
        None => {
            let names = folders.iter().map(|folder| folder.to_string_lossy().into_owned()).collect();
            let schema = Schema { classes: names, ..Schema::default() };
            ((0..).take(folders.len()).collect(), folders.len(), schema)
        }
    };
    let (mut images, mut skipped) = (vec![], vec![]);
    let mut add = |class: &Path, label| {
        let first = images.len();
        images.extend(files(class, &mut skipped)?.into_iter().map(|file| (file, label)));
        Ok::<_, DataError>(first..images.len())
    };
    let (mut train, mut test) = (vec![], vec![]);
    for (&label, class) in labels.iter().zip(&folders) {
        let own = add(&root.join(class), label)?;
        if to_test.is_some() {
            train.extend(own);
        } else {
            let (more, held_out) = nine_to_one(own.len());
            train.extend(more.into_iter().map(|index| own.start + index));
            test.extend(held_out.into_iter().map(|index| own.start + index));
        }
    }
    if let Some(to_test) = &to_test {
        for class in self::classes(to_test)? {
            let path = to_test.join(&class);
            let Ok(place) = folders.binary_search(&class) else {
                let problem =
                    format!("is not a class of `{}`: expected the same classes", to_train.display());
                return Err(DataError::file(path, problem));
            };
            test.extend(add(&path, labels[place])?);
        }
    }
    if test.is_empty() {
        let found = images.len();
        let what = "images, but too few in every class to hold out every tenth";
        return Err(DataError::too_short(directory, what, found, 10));
    }
    let notice = skipped.split_first().map(|(first, more)| {
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        let expected = extensions();
        format!("`{}`{more} skipped: expected files whose names end in {expected}", first.display())
    });
    EncodedImages::dataset(Files(images), (train, test), options, (classes, schema), notice)
}

/// Returns the names of the classes, in order. A link to nowhere is one too, and reported when it is read.
fn classes(root: &Path) -> Result<Vec<PathBuf>, DataError> {
    let folders = entries(root, |path| !path.is_file() && !is_hidden(path))?;
    let names: Vec<PathBuf> =
        folders.iter().filter_map(|folder| folder.file_name()).map(Into::into).collect();
    if names.is_empty() {
        return Err(DataError::file(root, "contains no directory: expected one for each class"));
    }
    Ok(names)
}

/// Returns the images of a class, at least one, with links to nowhere, which are reported when they are read. Adds other files and folders to
/// `skipped`.
fn files(class: &Path, skipped: &mut Vec<PathBuf>) -> Result<Vec<PathBuf>, DataError> {
    let is_image = |path: &PathBuf| {
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        EXTENSIONS.iter().any(|known| extension == *known) && !path.is_dir()
    };
    let found = entries(class, |path| !is_hidden(path))?;
    let (files, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_image);
    skipped.extend(others);
    if files.is_empty() {
        let problem = format!("contains no image: expected files whose names end in {}", extensions());
        return Err(DataError::file(class, problem));
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
