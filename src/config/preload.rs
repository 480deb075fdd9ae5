//! The environment with which a command starts an MPI program with a library preloaded.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The calls that the library for MPI programs leaves to MPI: `off`, or a list of functions and reductions.
pub(super) const ACCELERATE: &str = "UNISONO_ACCELERATE";
/// The variable that makes that library report at the end, if it is 1.
pub const ACCELERATE_REPORT: &str = "UNISONO_ACCELERATE_REPORT";
/// The variable with the libraries that the dynamic loader loads before those of the program.
pub const PRELOAD: &str = "LD_PRELOAD";

/// The value of [`PRELOAD`] that adds a library to those that are preloaded already.
pub fn preloaded(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

/// The file of a command, found as a shell finds it.
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
    fn a_command_is_found_as_a_shell_finds_it() {
        assert!(find_program(Path::new("sh")).is_some_and(|file| file.is_absolute()));
        assert_eq!(find_program(Path::new("/bin/sh")), Some("/bin/sh".into()));
        assert_eq!(find_program(Path::new("./no-such-program")), None);
    }

    #[test]
    fn a_library_comes_first() {
        assert!(preloaded(Path::new("/a.so")).to_str().unwrap().starts_with("/a.so"));
    }
}
