//! The environment of an MPI program that is started with a preloaded library.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variable with the libraries that the dynamic loader loads before those of the program.
pub const PRELOAD: &str = "LD_PRELOAD";

/// Returns the value of [`PRELOAD`] that adds a library to the preloaded ones.
pub fn preloaded(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

/// Returns the file of a command, with the search of a shell.
pub fn find_program(command: &Path) -> Option<PathBuf> {
    if command.components().count() > 1 {
        return command.is_file().then(|| command.to_owned());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(command)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_found_in_path() {
        assert!(find_program(Path::new("sh")).is_some_and(|file| file.is_absolute()));
        assert_eq!(find_program(Path::new("/bin/sh")), Some("/bin/sh".into()));
        assert_eq!(find_program(Path::new("./no-such-program")), None);
    }

    #[test]
    fn added_library_comes_first() {
        assert!(preloaded(Path::new("/a.so")).to_str().unwrap().starts_with("/a.so"));
    }
}
