//! `unisono plot` with rows from `unisono bench`.

use std::fs;
use std::path::{Path, PathBuf};

use unisono_testing::suite::Test;
use unisono_testing::tests;

use crate::{count, refused, unisono};

/// Creates an empty directory with a file of rows.
fn measured(name: &str) -> (PathBuf, String) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let arguments =
        "bench --threads 2 --algorithm ring,butterfly,auto --bytes 8:128K:16 --iterations 3 --format json";
    let rows = unisono(&arguments.split(' ').collect::<Vec<_>>()).expect_success().stdout;
    assert_eq!(rows.lines().count(), 3 * 4);
    fs::write(directory.join("rows.json"), &rows).unwrap();
    (directory, rows)
}

/// Counts the paths of lines, which are thicker than the outlines of markers.
fn lines(figure: &str, colour: &str) -> usize {
    let line = |path: &&str| path.contains("<polyline") && path.contains("stroke-width=\"4\"");
    figure.lines().filter(line).filter(|path| path.contains(colour)).count()
}

fn said(figure: &str, text: &str) -> usize {
    figure.lines().filter(|line| *line == text).count()
}

fn every_series_is_drawn_and_named() {
    let (directory, rows) = measured("series");
    let path = |name: &str| directory.join(name).display().to_string();
    unisono(&["plot", &path("rows.json"), "--out", &path("figure.svg")]).expect_success();
    let figure = fs::read_to_string(path("figure.svg")).unwrap();
    for (label, colour) in [("ring", "#0072B2"), ("butterfly", "#D55E00"), ("auto", "#009E73")] {
        assert_eq!(said(&figure, label), 1, "{label} in\n{figure}");
        assert_eq!(lines(&figure, colour), 3, "two panels and the legend in\n{figure}");
    }
    let title = "All-reduce: 2 ranks, 1 node, sum of f32, over threads, slice memory";
    assert_eq!(count(&figure, title), 1, "{figure}");
    for label in ["8 B", "128 B", "32 KiB"] {
        assert_eq!(said(&figure, label), 2, "{label} in\n{figure}");
    }

    // A baseline is dashed, and labels name the file where files have the same measurements.
    fs::write(path("other.json"), rows.replace("\"algorithm\":\"ring\"", "\"algorithm\":\"mpi\"")).unwrap();
    unisono(&["plot", &path("rows.json"), &path("other.json"), "--out", &path("figure.svg")])
        .expect_success();
    let figure = fs::read_to_string(path("figure.svg")).unwrap();
    for label in [format!("butterfly, {}", path("rows.json")), format!("mpi, {}", path("other.json"))] {
        assert_eq!(said(&figure, &label), 1, "{label} in\n{figure}");
    }
    assert!(lines(&figure, "#7A7A7A") > 20, "dashes in\n{figure}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 3, "nothing half written stays");
}

/// Checks for one line, exit code 2, and that no file was written.
fn bad_input_draws_nothing() {
    let (directory, rows) = measured("bad-input");
    let path = |name: &str| directory.join(name).display().to_string();
    for (name, text, said) in [
        ("empty.json", String::new(), "empty.json` has no rows"),
        ("broken.json", format!("{rows}{{\"algorithm\": \"ring\""), "broken.json`, line 13: not a row of"),
        ("table.json", "# 2 ranks on 1 node(s)\n".to_owned(), "table.json`, line 1: not a row of"),
        ("twice.json", format!("{rows}{rows}"), "twice.json`, line 13: ring at 8 B was measured in line 1"),
    ] {
        fs::write(path(name), text).unwrap();
        refused(&["plot", &path("rows.json"), &path(name), "--out", &path("figure.svg")], &[said]);
    }
    refused(&["plot", &path("absent.json"), "--out", &path("figure.svg")], &["cannot read"]);
    refused(&["plot", &path("rows.json"), "--out", &path("no/figure.svg")], &["cannot write"]);
    refused(&["plot", &path("rows.json"), "--out", &path("rows.json")], &["ends in .svg"]);
    assert_eq!(fs::read_to_string(path("rows.json")).unwrap(), rows, "results stay as they are");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 5, "no figure, and no beginning of one");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![every_series_is_drawn_and_named, bad_input_draws_nothing,]
}
