//! Files that appear under their names only when they are complete.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::Failure;

/// A file that replaces the one of its name when it is complete. Until then, it has another name in the same directory.
#[derive(Debug)]
pub(super) struct Replacement {
    out: BufWriter<File>,
    /// The incomplete file, which is removed if this is dropped. None for a device or a pipe, which is written directly.
    incomplete: Option<TempPath>,
    path: PathBuf,
    /// The path in the words of the user.
    name: String,
}

impl Replacement {
    /// Creates the incomplete file.
    ///
    /// # Errors
    /// Bad input if this is impossible: the directory is missing, or may not be written.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        // A link is kept, and its target replaced.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let is_special = fs::metadata(&path).is_ok_and(|found| !found.is_file());
        let created = if is_special {
            File::options().write(true).open(&path).map(|file| (file, None))
        } else {
            let name = path.file_name().unwrap_or_default();
            // By default, only this user could read the file.
            let beside = tempfile::Builder::new()
                .prefix(name)
                .suffix(".new")
                .make_in(path.parent().unwrap_or(Path::new("")), |beside| {
                    File::options().write(true).create_new(true).open(beside)
                });
            beside.map(tempfile::NamedTempFile::into_parts).map(|(file, incomplete)| (file, Some(incomplete)))
        };
        let (file, incomplete) = created.map_err(|error| Failure::BadInput(cannot_write(&name, &error)))?;
        Ok(Self { out: BufWriter::new(file), incomplete, path, name })
    }

    /// Appends a text, as `write!` formats it.
    pub(super) fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> Result<(), Failure> {
        self.out.write_fmt(text).map_err(|error| Failure::Error(cannot_write(&self.name, &error)))
    }

    /// Gives the complete file its name.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let flushed = self.out.flush();
        let finished = flushed.and_then(|()| match self.incomplete {
            Some(incomplete) => incomplete.persist(&self.path).map_err(|failed| failed.error),
            None => Ok(()),
        });
        finished.map_err(|error| Failure::Error(cannot_write(&self.name, &error)))
    }
}

fn cannot_write(name: &str, error: &io::Error) -> String {
    format!("cannot write `{name}`: {error}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt as _, symlink};

    use super::*;

    #[test]
    fn file_is_replaced_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        symlink("file", &link).unwrap();
        let text = || fs::read_to_string(&file).unwrap();
        let mut dropped = Replacement::create(&link).unwrap();
        write!(dropped, "new").unwrap();
        drop(dropped);
        assert_eq!(text(), "old");
        let mut complete = Replacement::create(&link).unwrap();
        write!(complete, "new").unwrap();
        assert_eq!(text(), "old");
        complete.finish().unwrap();
        assert_eq!(text(), "new");
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn device_is_written_and_not_replaced() {
        let mut full = Replacement::create("/dev/full".as_ref()).unwrap();
        write!(full, "text").unwrap();
        let failure = full.finish().unwrap_err();
        assert!(
            matches!(&failure, Failure::Error(why) if why.contains("`/dev/full`: No space")),
            "{failure:?}"
        );
        assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
        let missing = Replacement::create("/nowhere/file".as_ref()).unwrap_err();
        assert!(matches!(missing, Failure::BadInput(_)), "{missing:?}");
    }
}
