//! Images in tar files, as WebDataset writes them. Loading reads only the headers of members and the classes. Images are read when a sample is made.

use std::hash::Hasher;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tar::{Archive, Entries, EntryType};

use super::byte_file::{ByteFile, Compression};
use super::decoding::{EXTENSIONS, Raw, extensions};
use super::encoded::{EncodedImages, Store};
use super::files;
use crate::{DataError, Dataset, Options, Schema};

/// The size of a block: the size of a header, and the unit of a tar file's length.
const BLOCK: u64 = 512;
/// The maximum size of a member with the class, in bytes.
const MOST_OF_CLASS: u64 = 1 << 20;

/// The advice for a sample without one of its members, which may be elsewhere in the file.
const TOGETHER: &str = "the members of a sample must follow each other (`tar --sort=name`)";

/// Reads the headers of the tar files that `path` names, or of those in its directories.
pub(super) fn read(path: &Path, options: &Options) -> Result<Dataset, DataError> {
    let is_shard = |name: &str| [".tar", ".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end));
    let wanted = (is_shard, "file whose name ends in .tar, .tar.gz or .tgz");
    let mut members = Members::default();
    let parts = files::divided(path, wanted, "samples", |file| members.add(file))?;
    let classes = members.classes(options.classes)?;
    // The classes are numbered by the writer of the files.
    EncodedImages::dataset(members, parts, options, (classes, Schema::default()), None)
}

/// Samples in tar files, by their index over all files.
#[derive(Debug, Default)]
struct Members {
    files: Vec<ByteFile>,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    file: usize,
    /// The common part of the names of its members.
    key: Box<str>,
    image: Member,
    label: u32,
}

/// The bytes of a member, in its file.
#[derive(Debug, Clone, Copy)]
struct Member {
    offset: u64,
    length: u64,
}

impl Members {
    /// Finds the samples of another file, and returns their indices. A gzipped file is decompressed while its headers are read.
    fn add(&mut self, path: PathBuf) -> Result<Range<usize>, DataError> {
        let file = ByteFile::open(path.clone())?;
        let damaged = |problem: String| DataError::file(path.clone(), problem);
        let (file, found) = if file.is_gzipped()? {
            file.unpacked(Compression::Gzip, |content| found_in(&path, Archive::new(content).entries()))?
        } else {
            let found = found_in(&path, Archive::new(file.reader()).entries_with_seek())?;
            (file, found)
        };
        if let Some((name, _)) = found.last.as_ref().filter(|(_, end)| *end > file.length) {
            return Err(damaged(format!("ends within its member `{name}`; fetch it again")));
        }
        let first = self.samples.len();
        for parts in found.samples {
            self.samples.push(parts.sample(&file, self.files.len())?);
        }
        let end = found.last.map_or(0, |(_, end)| end);
        if file.length < end.next_multiple_of(BLOCK) + BLOCK {
            return Err(damaged("has no end mark: it is cut off; fetch it again".into()));
        }
        self.files.push(file);
        Ok(first..self.samples.len())
    }

    /// Returns the number of classes, one more than the highest label. Returns an error for labels that are not below `known`, if given.
    fn classes(&self, known: Option<usize>) -> Result<usize, DataError> {
        let Some(classes) = known else {
            return Ok(self.samples.iter().map(|sample| sample.label as usize + 1).max().unwrap_or(0));
        };
        match self.samples.iter().find(|sample| sample.label as usize >= classes) {
            None => Ok(classes),
            Some(Sample { file, key, label, .. }) => {
                let problem = format!("the label is {label}: expected one from 0 to {}", classes - 1);
                Err(damaged(&self.files[*file].path, key, &problem))
            }
        }
    }
}

impl Store for Members {
    fn raw(&self, index: usize) -> Result<(Raw, u32), DataError> {
        let Sample { file, image, label, .. } = &self.samples[index];
        let bytes = self.files[*file].read(image.offset, image.length as usize)?;
        Ok((Raw::Encoded(bytes), *label))
    }

    fn damaged(&self, index: usize, problem: &str) -> DataError {
        let Sample { file, key, .. } = &self.samples[index];
        damaged(&self.files[*file].path, key, &format!("its image {problem}"))
    }

    fn hash(&self, index: usize, hasher: &mut dyn Hasher) -> Result<(), DataError> {
        let Sample { key, image, label, .. } = &self.samples[index];
        hasher.write(key.as_bytes());
        hasher.write(&image.length.to_le_bytes());
        hasher.write(&label.to_le_bytes());
        Ok(())
    }

    fn paths(&self, _: &[usize]) -> Vec<&Path> {
        self.files.iter().map(|file| &*file.path).collect()
    }
}

#[derive(Default)]
struct Found {
    samples: Vec<Parts>,
    /// The name and the end of the last member.
    last: Option<(String, u64)>,
}

fn found_in<R: Read>(path: &Path, entries: io::Result<Entries<'_, R>>) -> Result<Found, DataError> {
    let damaged = |problem: String| DataError::file(path, problem);
    let broken = |error| {
        damaged(format!(
            "is not a tar file, has a volume label (`tar -V`), or is damaged: {error}; write or fetch it again"
        ))
    };
    let mut found = Found::default();
    for entry in entries.map_err(broken)? {
        let entry = entry.map_err(broken)?;
        let member = Member { offset: entry.raw_file_position(), length: entry.size() };
        let bytes = entry.path_bytes();
        let name = String::from_utf8_lossy(&bytes);
        found.last = Some((name.to_string(), member.offset.saturating_add(member.length)));
        let Some((key, extension)) = divided(&name) else { continue };
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {}
            EntryType::GNUSparse => {
                return Err(damaged(format!("has a sparse member, `{name}`: expected plain ones")));
            }
            // Skipping it would lose its sample silently, or report a sample without an image or a class.
            EntryType::Link | EntryType::Symlink if place_of(extension).is_some() => {
                return Err(damaged(format!(
                    "has a link, `{name}`: expected plain members; write it again, with tar's --hard-dereference and --dereference"
                )));
            }
            _ => continue,
        }
        if found.samples.last().is_none_or(|parts| *parts.key != *key) {
            found.samples.push(Parts { key: key.into(), image: None, class: None, table: None });
        }
        let parts = found.samples.last_mut().expect("there is one from here on");
        parts.add(extension, member).map_err(damaged)?;
    }
    Ok(found)
}

fn damaged(path: &Path, key: &str, problem: &str) -> DataError {
    DataError::file(path, format!("sample `{key}`: {problem}"))
}

/// Splits the name of a member into key and extension, at the first dot of its base name. Returns `None` without a dot, or if the base name starts
/// with a dot or `__`: such members belong to no sample.
fn divided(name: &str) -> Option<(&str, &str)> {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let point = name[base..].find('.').filter(|&point| point > 0)?;
    let (key, extension) = name.split_at(base + point);
    (!key[base..].starts_with("__")).then(|| (key, &extension[1..]))
}

/// The members of a sample that have been found.
struct Parts {
    key: Box<str>,
    image: Option<Member>,
    /// The class, in decimal.
    class: Option<Member>,
    /// A JSON object that may have the class.
    table: Option<Member>,
}

/// Returns the place of members with this extension; `None` if they are not read.
fn place_of(extension: &str) -> Option<fn(&mut Parts) -> &mut Option<Member>> {
    match &*extension.to_lowercase() {
        extension if EXTENSIONS.contains(&extension) => Some(|parts| &mut parts.image),
        "cls" => Some(|parts| &mut parts.class),
        "json" => Some(|parts| &mut parts.table),
        _ => None,
    }
}

impl Parts {
    fn add(&mut self, extension: &str, member: Member) -> Result<(), String> {
        let Some(place) = place_of(extension) else { return Ok(()) };
        match place(self).replace(member) {
            None => Ok(()),
            Some(_) => Err(format!(
                "sample `{}`: has another member like `.{extension}`: expected one image and one class",
                self.key
            )),
        }
    }

    fn sample(self, file: &ByteFile, number: usize) -> Result<Sample, DataError> {
        let damaged = |problem: &str| damaged(&file.path, &self.key, problem);
        let image = self.image.ok_or_else(|| {
            damaged(&format!("has no image: expected a member that ends in {}; {TOGETHER}", extensions()))
        })?;
        let label = match (self.class, self.table) {
            (Some(class), _) => number_in(&text(file, class, &damaged)?),
            (None, Some(table)) => label_in(&text(file, table, &damaged)?),
            (None, None) => Err(format!("has no class: expected a member `.cls` or `.json`; {TOGETHER}")),
        };
        let label = label.map_err(|problem| damaged(&problem))?;
        Ok(Sample { file: number, key: self.key, image, label })
    }
}

/// Returns the content of a member with the class.
fn text(file: &ByteFile, member: Member, damaged: &impl Fn(&str) -> DataError) -> Result<Vec<u8>, DataError> {
    if member.length > MOST_OF_CLASS {
        return Err(damaged(&format!("its class is in {} bytes: expected a number", member.length)));
    }
    file.read(member.offset, member.length as usize)
}

fn number_in(text: &[u8]) -> Result<u32, String> {
    let text = String::from_utf8_lossy(text);
    let number = text.trim();
    number.parse().map_err(|_| {
        let shown: String = number.chars().take(40).collect();
        format!("its `.cls` says `{shown}`: expected a number from 0 to {}", u32::MAX)
    })
}

fn label_in(json: &[u8]) -> Result<u32, String> {
    let value: Value =
        serde_json::from_slice(json).map_err(|error| format!("its `.json` cannot be read: {error}"))?;
    let label = ["label", "cls"].iter().find_map(|name| value.get(name));
    label.and_then(Value::as_u64).and_then(|label| label.try_into().ok()).ok_or_else(|| {
        format!("its `.json` has no number `label` or `cls` from 0 to {}: expected one of them", u32::MAX)
    })
}

#[cfg(test)]
mod tests;
