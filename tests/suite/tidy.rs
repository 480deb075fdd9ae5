//! The invariants of ARCHITECTURE.md that no compiler enforces.

use std::fs;
use std::path::{Path, PathBuf};

use unisono_testing::{suite::Test, tests};

const MOST_LINES: usize = 400;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        no_file_is_long,
        pure_crates_are_pure,
        only_config_reads_the_environment,
        the_trainer_names_no_transport,
        algorithms_name_no_buffer,
        doc_examples_do_not_drop_errors,
    ]
}

/// Returns all Rust files below a folder of the project, with their text.
pub(crate) fn files(folder: &str) -> Vec<(PathBuf, String)> {
    files_in("rs", folder)
}

/// Returns all files of a language below a folder of the project, with their text.
pub(crate) fn files_in(language: &str, folder: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // Build folders are skipped. They exist below examples that are separate workspaces.
                folders.extend(Some(path).filter(|path| !path.ends_with("target")));
            } else if path.extension().is_some_and(|extension| extension == language) {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    assert!(!files.is_empty(), "{folder} has files");
    files
}

/// Checks that no file below the folder contains any of these words outside comments.
fn absent(folder: &str, words: &[&str], except: &[&str]) {
    for (path, text) in files(folder) {
        if except.iter().any(|except| path.ends_with(except)) {
            continue;
        }
        let code = text.lines().zip(1..).filter(|(line, _)| !line.trim_start().starts_with("//"));
        for (line, number) in code {
            for word in words {
                assert!(!line.contains(word), "{}:{number} contains {word}", path.display());
            }
        }
    }
}

fn no_file_is_long() {
    for folder in ["src", "collectives", "crates", "tests", "examples", "benches"] {
        check_lengths(files(folder));
    }
    check_lengths(files_in("py", "crates/python"));
}

fn check_lengths(files: Vec<(PathBuf, String)>) {
    for (path, text) in files {
        let lines = text.lines().count();
        assert!(lines <= MOST_LINES, "{} has {lines} lines", path.display());
    }
}

fn pure_crates_are_pure() {
    let impure =
        ["std::thread", "std::time", "std::env", "std::fs", "std::io", "std::net", "std::process", "mpi::"];
    absent("collectives/src", &impure, &[]);
    absent("crates/steps/src", &impure, &[]);
}

fn only_config_reads_the_environment() {
    let words = ["env::var", "env::set_var"];
    absent(
        "src",
        &words,
        &[
            "src/config.rs",
            "src/config/bootstrap.rs",
            "src/config/cores.rs",
            "src/config/launcher.rs",
            "src/config/interfaces.rs",
            "src/config/preload.rs",
            "src/config/variables.rs",
        ],
    );
    absent("collectives/src", &words, &[]);
    for name in ["bench", "candle", "cli", "compress", "data", "data-service", "steps", "strategies", "train"]
    {
        absent(&format!("crates/{name}/src"), &words, &[]);
    }
}

fn the_trainer_names_no_transport() {
    for name in ["candle", "strategies", "train"] {
        absent(&format!("crates/{name}/src"), &["mpi::", "threads::"], &[]);
    }
}

fn algorithms_name_no_buffer() {
    absent("collectives/src/algorithm", &["&mut [", "Vec<f", "Vec<u8", "Interpreter", "verify("], &[]);
}

fn doc_examples_do_not_drop_errors() {
    for (path, text) in ["src", "crates"].into_iter().flat_map(files) {
        for (line, number) in text.lines().zip(1..) {
            let example = line.trim_start().trim_start_matches("///").trim_start_matches("//!").trim_start();
            let drops = example.starts_with("unisono::threads(") && example.contains("Result<");
            assert!(!drops, "{}:{number}: the example ignores the results of the ranks", path.display());
        }
    }
}
