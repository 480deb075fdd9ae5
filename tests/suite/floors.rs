//! The dependencies between modules of `src/`, and the names that must not occur in some of them. Cargo holds the dependencies
//! between crates.
//!
//! Code of tests is left out.

mod files;
mod graph;
mod never;
mod reader;

use std::path::Path;

use unisono_testing::{suite::Test, tests};

use files::files;
use graph::{Arrows, Graph, arrow, circle, told};

/// The house, from the ground up. A room names rooms of its own floor and of those below it, and no circle leads back to it.
const FLOORS: [(&str, &[&str]); 15] = [
    ("words", &["size", "sync", "system", "dtype", "record", "error", "while_waiting", "control"]),
    ("kernels", &["kernels"]),
    ("calls", &["method", "call", "codes"]),
    ("settings", &["config"]),
    ("memory", &["memory"]),
    ("status", &["status"]),
    ("links", &["transport"]),
    ("executor", &["executor"]),
    ("GPUs", &["gpu", "nccl", "device"]),
    ("which method", &["select", "tuning"]),
    ("communicator", &["collective", "request", "communicator"]),
    ("constants", &["constants"]),
    ("watchdog", &["watchdog"]),
    ("worlds", &["world", "run"]),
    // `lib` is what the library shows, `internals` what it shows to the workspace's other crates and to benches.
    ("outside", &["lib", "internals"]),
];

/// Arrows that go down the floors, and still must not be.
const FORBIDDEN_DEPENDENCIES: [(&str, &[&str]); 4] = [
    ("watchdog", &["transport", "executor", "collective", "communicator"]),
    ("tuning", &["select"]),
    ("select", &["tuning", "transport", "executor"]),
    ("request", &["call", "kernels", "transport"]),
];

/// The crates that people use.
const CRATES: [&str; 14] = [
    "src",
    "collectives/src",
    "crates/bench/src",
    "crates/compress/src",
    "crates/steps/src",
    "crates/data/src",
    "crates/data-service/src",
    "crates/train/src",
    "crates/strategies/src",
    "crates/candle/src",
    "crates/cli/src",
    "crates/bindings/src",
    "crates/c/src",
    "crates/python/src",
];

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        rooms_name_what_is_below_them,
        no_circle_leads_through_rooms,
        a_circle_is_found_however_it_is_written,
        a_circle_is_told_by_its_lines,
        an_arrow_upwards_is_found,
    ];
    tests.extend(never::tests());
    tests
}

fn graph_of(folder: &str) -> Graph {
    let sources = files(folder);
    Graph::new(sources.iter().map(|(path, text)| (path.as_path(), text.as_str())))
}

/// Returns dependencies that go upwards or are forbidden.
fn wrong(arrows: &Arrows) -> Vec<String> {
    let floor = |room: &str| {
        let floor = FLOORS.iter().position(|(_, rooms)| rooms.contains(&room));
        floor.unwrap_or_else(|| {
            panic!("`{room}` is on no floor: give it its place in FLOORS, and in ARCHITECTURE.md")
        })
    };
    let is_forbidden = |from: &str, to: &str| {
        let rule = FORBIDDEN_DEPENDENCIES.iter().find(|(room, _)| *room == from);
        rule.is_some_and(|(_, never)| never.contains(&to) || never.contains(&"*"))
    };
    let all = arrows.iter().flat_map(|(from, tos)| tos.keys().map(move |to| (from, to)));
    let wrong = all.filter(|(from, to)| floor(from) < floor(to) || is_forbidden(from, to));
    wrong.map(|(from, to)| arrow(arrows, from, to)).collect()
}

fn rooms_name_what_is_below_them() {
    let arrows = graph_of("src").below(&[]);
    let wrong = wrong(&arrows);
    assert!(wrong.is_empty(), "these go upwards, or to where they must not:\n{}", wrong.concat());
    for (_, rooms) in FLOORS {
        rooms.iter().for_each(|room| assert!(arrows.contains_key(*room), "there is no `{room}` any more"));
    }
}

fn no_circle_leads_through_rooms() {
    let circles_of = |folder: &'static str| {
        let graph = graph_of(folder);
        let told_of = |parent: &[String]| {
            let arrows = graph.below(parent);
            let circle = circle(&arrows)?;
            let path = [&[folder.to_owned()], parent].concat().join("::");
            Some(format!("in {path}, {} make a circle:\n{}", circle.join(", "), told(&arrows, &circle)))
        };
        graph.parents().into_iter().filter_map(told_of).collect::<Vec<_>>()
    };
    let circles: Vec<_> = CRATES.into_iter().flat_map(circles_of).collect();
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

/// The graph of three files.
fn small(one: &str, two: &str, lib: &str) -> Graph {
    Graph::new([(Path::new("one.rs"), one), (Path::new("two/deep.rs"), two), (Path::new("lib.rs"), lib)])
}

fn a_circle_is_found_however_it_is_written() {
    let (lib, up) = ("pub use one::One;", "fn f() -> crate::One { x!(crate::One) }");
    let circles = |one: &str, two: &str| circle(&small(one, two, lib).below(&[]));
    for down in [
        "use crate::two::deep::Two;",
        "use crate::{two::{deep::{self, Two}}};",
        "use super::two;\nfn f() { two::deep::f() }",
        "struct S { two: crate::two::deep::Two }",
        "mod inner { use super::super::two::deep::Two; }",
        "m! { crate::two::deep::f() }",
    ] {
        assert_eq!(circles(down, up), Some(vec!["one".to_owned(), "two".to_owned()]), "{down}");
        assert_eq!(circles(down, "// crate::One\nconst S: &str = \"crate::One\";"), None, "{down}");
    }
    for nothing in [
        "#[cfg(test)] mod tests { use crate::two::deep::Two; }",
        "use other::two::deep;",
        "fn f() { x.two::<T>() }",
    ] {
        assert_eq!(circles(nothing, up), None, "{nothing}");
    }
}

fn a_circle_is_told_by_its_lines() {
    let arrows =
        small("\nuse crate::two::deep;", "use super::super::one::{\n    A,\n    B,\n};", "").below(&[]);
    let lines = "one -> two\n    one.rs:2: crate::two::deep\ntwo -> one\n    two/deep.rs:2: super::super::one::A\n    \
                 two/deep.rs:3: super::super::one::B\n";
    assert_eq!(told(&arrows, &circle(&arrows).unwrap()), lines);
}

fn an_arrow_upwards_is_found() {
    let graph = Graph::new([
        (Path::new("error.rs"), "use crate::status::StatusBoard;"),
        (Path::new("status.rs"), "use crate::error::Error;"),
    ]);
    let wrong = wrong(&graph.below(&[]));
    assert_eq!(wrong, ["error -> status\n    error.rs:1: crate::status::StatusBoard\n"]);
}
