//! MPI libraries that differ from the one that the program was compiled for. A preloaded library replaces the version string of the real one.

use std::path::PathBuf;
use std::process::Command;

use unisono_testing::suite::Test;
use unisono_testing::tests;

use super::{differing, launch, our_lines, ranks, run};
use crate::count;

/// Compiles a library that makes MPI report another version, once for each version.
fn library(version: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("unisono-launch-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    let name = version.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let (source, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    let text = format!(
        "#include <string.h>\nint MPI_Get_library_version(char *text, int *length) {{\n  strcpy(text, \"{version}\");\n  \
         *length = (int)strlen(text);\n  return 0;\n}}\n"
    );
    std::fs::write(&source, text).expect("a temporary file");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(compiled.is_ok_and(|status| status.success()), "`cc` compiles {}", source.display());
    library
}

fn no_compiler() -> Option<String> {
    let is_there = Command::new("cc").arg("--version").output().is_ok();
    (!is_there).then(|| "there is no C compiler `cc`".to_owned())
}

/// Returns the version of an MPI of the same family as this program's, and of the other family.
fn versions() -> (&'static str, &'static str) {
    let (open_mpi, mpich) = ("Open MPI v3.9.9, package: x", "MPICH Version:\\t9.9.9\\n");
    if launch::is_open_mpi() { (open_mpi, mpich) } else { (mpich, open_mpi) }
}

pub(crate) fn tests() -> Vec<Test> {
    let tests = tests![
        library_of_another_mpi_is_refused_before_mpi_is_initialised,
        another_version_of_the_same_mpi_is_reported_once_and_works,
        another_version_of_mpi_on_one_rank_is_reported_once_and_works,
    ];
    tests.into_iter().map(|test| test.unless(no_compiler)).collect()
}

fn library_of_another_mpi_is_refused_before_mpi_is_initialised() {
    let mut command = ranks(2, "start");
    command.env("LD_PRELOAD", library(versions().1));
    let ended = run(command);
    assert!(!ended.status.success());
    assert!(ended.stdout.contains("this program was compiled for "), "{ended:?}");
    assert_eq!(count(&ended.stdout, "has begun"), 0, "{ended:?}");
}

fn another_version_of_the_same_mpi_is_reported_once_and_works() {
    let mut command = ranks(2, "sum");
    command.env("LD_PRELOAD", library(versions().0));
    let ended = run(command).expect_success();
    let lines = our_lines(&ended);
    assert_eq!(lines.len(), 1, "{ended:?}");
    assert!(lines[0].contains("was compiled for") && lines[0].contains("9.9"), "{ended:?}");
}

fn another_version_of_mpi_on_one_rank_is_reported_once_and_works() {
    let library = library(versions().0);
    let ended = differing("LD_PRELOAD", ("", library.to_str().expect("a path in UTF-8")), "sum");
    let ended = ended.expect_success();
    let lines = our_lines(&ended);
    assert_eq!(lines.len(), 1, "{ended:?}");
    assert!(lines[0].contains("on rank 0 (") && lines[0].contains("on rank 1 ("), "{ended:?}");
}
