//! The files that a source names (one file, a list, or a pattern), and which of them have held-out samples.

use std::collections::HashSet;
use std::fs::{self, DirEntry};
use std::mem;
use std::ops::Range;
use std::path::{Path, PathBuf};

use glob::{Pattern, PatternError};

use crate::error::DataError;
use crate::split::nine_to_one;

/// The maximum number of names that a pattern's braces may expand to.
const MOST_NAMES: usize = 1_000_000;
const WILDCARDS: [char; 3] = ['*', '?', '['];

/// Returns the files that `name` selects. Commas separate several names. Each is a path or a pattern: `{a,b}` and `{000..119}` expand to all their
/// elements, and these files must exist. Then `*`, `?`, `[…]` and `**` match existing files, sorted by name.
/// An existing path names itself, even with special characters. A list keeps its order.
pub(super) fn named(name: &Path) -> Result<Vec<PathBuf>, DataError> {
    let Some(text) = name.to_str().filter(|_| !name.exists()) else { return Ok(vec![name.into()]) };
    let mut files = vec![];
    for element in elements(text) {
        if element.is_empty() {
            let problem = "is a list with an empty element: expected a name before and after each comma";
            return Err(DataError::file(name, problem));
        }
        if Path::new(element).exists() {
            files.push(element.into());
            continue;
        }
        let names = unbraced(element).ok_or_else(|| {
            let expected = format!("at most {MOST_NAMES} names between its braces");
            no_match(element, &expected)
        })?;
        for name in names {
            match name.contains(WILDCARDS) && !Path::new(&name).exists() {
                true => files.extend(matches(&name)?),
                false => files.push(name.into()),
            }
        }
    }
    check_distinct(&files, name)?;
    Ok(files)
}

/// Returns an error if two of the files that `name` selects are the same, also if they are spelled differently.
fn check_distinct(files: &[PathBuf], name: &Path) -> Result<(), DataError> {
    let mut seen = HashSet::new();
    // A missing file has no other name, and is reported when it is opened.
    let place = |file: &PathBuf| fs::canonicalize(file).unwrap_or_else(|_| file.clone());
    match files.iter().find(|&file| !seen.insert(place(file))) {
        None => Ok(()),
        Some(twice) => {
            let problem = format!("is named twice in `{}`: expected every file once", name.display());
            Err(DataError::file(twice.clone(), problem))
        }
    }
}

/// Splits a list at commas outside of braces.
fn elements(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |c| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// Returns the existing files that match, sorted. As in a shell, `*` does not match a leading dot. The names of files need not be UTF-8.
fn matches(pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let mut found = vec![PathBuf::new()];
    for part in Path::new(pattern).components() {
        let part = part.as_os_str().to_string_lossy();
        let invalid = |error: PatternError| no_match(pattern, &format!("a valid pattern: {error}"));
        let wanted = Pattern::new(&part).map_err(invalid)?;
        let is_wanted = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            wanted.matches(&name) && (part.starts_with('.') || !is_hidden(path))
        };
        for start in mem::take(&mut found) {
            if !part.contains(WILDCARDS) {
                found.push(start.join(&*part));
            } else if here(&start).is_dir() {
                found.extend(if part == "**" { tree(start)? } else { entries(&start, is_wanted)? });
            }
        }
    }
    found.retain(|file| !file.is_dir() && file.symlink_metadata().is_ok());
    found.sort();
    found.dedup();
    match found.is_empty() {
        true => Err(no_match(pattern, "a path, or a pattern of existing files")),
        false => Ok(found),
    }
}

/// Returns a directory and all directories below it, except hidden ones.
fn tree(directory: PathBuf) -> Result<Vec<PathBuf>, DataError> {
    let (mut all, mut next) = (vec![directory], 0);
    while let Some(directory) = all.get(next) {
        let below = entries(directory, |path| path.is_dir() && !is_hidden(path))?;
        all.extend(below);
        next += 1;
    }
    Ok(all)
}

fn no_match(pattern: &str, expected: &str) -> DataError {
    DataError::other(format!("no file matches `{pattern}`: expected {expected}"))
}

/// Expands the braces of a name: `{a,b}` to each of its elements, `{08..11}` to each number, as wide as the first. A range descends if its last
/// number is the smaller one. Other braces stay as they are. Returns `None` if there are too many names.
fn unbraced(name: &str) -> Option<Vec<String>> {
    let mut names = vec![String::new()];
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('{')
        && let Some((inner, after)) = after.split_once('}')
    {
        let choices = choices(inner)?;
        if names.len().checked_mul(choices.len()).is_none_or(|count| count > MOST_NAMES) {
            return None;
        }
        let started = std::mem::take(&mut names);
        for start in started {
            names.extend(choices.iter().map(|choice| format!("{start}{before}{choice}")));
        }
        rest = after;
    }
    Some(names.into_iter().map(|start| start + rest).collect())
}

/// Returns the expansions of braces with this content; `None` if there are too many.
fn choices(inner: &str) -> Option<Vec<String>> {
    if inner.contains(',') {
        return Some(inner.split(',').map(str::to_owned).collect());
    }
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match inner.split_once("..").filter(|(first, last)| is_number(first) && is_number(last)) {
        None => Some(vec![format!("{{{inner}}}")]),
        Some((first, last)) => {
            let width = first.len();
            let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
            let is_few = last.abs_diff(first) < MOST_NAMES as u64 && width < 64;
            let name = |number: u64| format!("{number:0width$}");
            is_few.then(|| match first <= last {
                true => (first..=last).map(name).collect(),
                false => (last..=first).rev().map(name).collect(),
            })
        }
    }
}

/// Returns the directory of a path that is the start of relative ones, and may be empty.
fn here(start: &Path) -> &Path {
    if start.as_os_str().is_empty() { Path::new(".") } else { start }
}

/// Returns the wanted entries of a directory, sorted by name.
pub(super) fn entries(
    directory: &Path,
    is_wanted: impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = DataError::read(here(directory));
    let found = fs::read_dir(here(directory)).map_err(unreadable)?;
    let path = |entry: DirEntry| directory.join(entry.file_name());
    let paths = found.map(|entry| entry.map(path).map_err(unreadable));
    let mut entries: Vec<_> = paths.collect::<Result<_, _>>()?;
    entries.retain(|path| is_wanted(path));
    entries.sort();
    Ok(entries)
}

pub(super) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

pub(super) const HELD_OUT: [&str; 3] = ["test", "val", "validation"];

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
        let words = HELD_OUT.join("`, `");
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
    words.any(|word| HELD_OUT.contains(&word))
}

#[cfg(test)]
mod tests;
