//! Checks of the dependencies between modules of `src/`, and of names that must not occur in some of them. Cargo enforces the
//! dependencies between crates.
//!
//! Test code is not checked.

mod files;
mod graph;
mod never;
mod reader;

use std::path::Path;

use unisono_testing::{suite::Test, tests};

use files::files;
use graph::{Dependencies, Graph, find_cycle, format_cycle, format_dependency};

/// The layers of modules, lowest first. A module depends on modules of its own and lower layers, without cycles.
const LAYERS: [(&str, &[&str]); 15] = [
    ("words", &["size", "sync", "system", "dtype", "record", "error", "while_waiting", "control"]),
    ("kernels", &["kernels"]),
    ("calls", &["method", "call", "codes"]),
    ("settings", &["config"]),
    ("memory", &["memory"]),
    ("status", &["observe", "status"]),
    ("links", &["transport"]),
    ("executor", &["executor"]),
    ("GPUs", &["gpu", "nccl", "device"]),
    ("which method", &["select", "tuning"]),
    ("communicator", &["collective", "request", "communicator"]),
    ("constants", &["constants"]),
    ("watchdog", &["watchdog"]),
    ("worlds", &["world", "run"]),
    // `lib` is the public interface, and `internals` that of the workspace's other crates and benchmarks.
    ("outside", &["lib", "internals", "trace"]),
];

/// Dependencies on lower layers that are forbidden nevertheless.
const FORBIDDEN_DEPENDENCIES: [(&str, &[&str]); 4] = [
    ("watchdog", &["transport", "executor", "collective", "communicator"]),
    ("tuning", &["select"]),
    ("select", &["tuning", "transport", "executor"]),
    ("request", &["call", "kernels", "transport"]),
];

/// The checked crates.
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
        modules_depend_on_lower_layers_only,
        modules_have_no_cycles,
        every_form_of_a_cycle_is_found,
        cycle_is_reported_with_its_lines,
        upward_dependency_is_found,
    ];
    tests.extend(never::tests());
    tests
}

fn graph_of(folder: &str) -> Graph {
    let sources = files(folder);
    Graph::new(sources.iter().map(|(path, text)| (path.as_path(), text.as_str())))
}

/// Returns the dependencies on higher layers, and the forbidden ones.
fn wrong(dependencies: &Dependencies) -> Vec<String> {
    let layer = |module: &str| {
        let layer = LAYERS.iter().position(|(_, modules)| modules.contains(&module));
        layer.unwrap_or_else(|| panic!("`{module}` is in no layer: add it to LAYERS, and to ARCHITECTURE.md"))
    };
    let is_forbidden = |from: &str, to: &str| {
        let rule = FORBIDDEN_DEPENDENCIES.iter().find(|(module, _)| *module == from);
        rule.is_some_and(|(_, never)| never.contains(&to) || never.contains(&"*"))
    };
    let all = dependencies.iter().flat_map(|(from, tos)| tos.keys().map(move |to| (from, to)));
    let wrong = all.filter(|(from, to)| layer(from) < layer(to) || is_forbidden(from, to));
    wrong.map(|(from, to)| format_dependency(dependencies, from, to)).collect()
}

fn modules_depend_on_lower_layers_only() {
    let dependencies = graph_of("src").below(&[]);
    let wrong = wrong(&dependencies);
    assert!(wrong.is_empty(), "upward or forbidden dependencies:\n{}", wrong.concat());
    for (_, modules) in LAYERS {
        for module in modules {
            assert!(dependencies.contains_key(*module), "there is no `{module}` any more");
        }
    }
}

fn modules_have_no_cycles() {
    let cycles_of = |folder: &'static str| {
        let graph = graph_of(folder);
        let cycle_of = |parent: &[String]| {
            let dependencies = graph.below(parent);
            let cycle = find_cycle(&dependencies)?;
            let path = [&[folder.to_owned()], parent].concat().join("::");
            Some(format!(
                "in {path}, {} form a cycle:\n{}",
                cycle.join(", "),
                format_cycle(&dependencies, &cycle)
            ))
        };
        graph.parents().into_iter().filter_map(cycle_of).collect::<Vec<_>>()
    };
    let cycles: Vec<_> = CRATES.into_iter().flat_map(cycles_of).collect();
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
}

/// Returns the graph of three files.
fn small(one: &str, two: &str, lib: &str) -> Graph {
    Graph::new([(Path::new("one.rs"), one), (Path::new("two/deep.rs"), two), (Path::new("lib.rs"), lib)])
}

fn every_form_of_a_cycle_is_found() {
    let (lib, up) = ("pub use one::One;", "fn f() -> crate::One { x!(crate::One) }");
    let cycles = |one: &str, two: &str| find_cycle(&small(one, two, lib).below(&[]));
    for down in [
        "use crate::two::deep::Two;",
        "use crate::{two::{deep::{self, Two}}};",
        "use super::two;\nfn f() { two::deep::f() }",
        "struct S { two: crate::two::deep::Two }",
        "mod inner { use super::super::two::deep::Two; }",
        "m! { crate::two::deep::f() }",
    ] {
        assert_eq!(cycles(down, up), Some(vec!["one".to_owned(), "two".to_owned()]), "{down}");
        assert_eq!(cycles(down, "// crate::One\nconst S: &str = \"crate::One\";"), None, "{down}");
    }
    for nothing in [
        "#[cfg(test)] mod tests { use crate::two::deep::Two; }",
        "use other::two::deep;",
        "fn f() { x.two::<T>() }",
    ] {
        assert_eq!(cycles(nothing, up), None, "{nothing}");
    }
}

fn cycle_is_reported_with_its_lines() {
    let dependencies =
        small("\nuse crate::two::deep;", "use super::super::one::{\n    A,\n    B,\n};", "").below(&[]);
    let lines = "one -> two\n    one.rs:2: crate::two::deep\ntwo -> one\n    two/deep.rs:2: super::super::one::A\n    \
                 two/deep.rs:3: super::super::one::B\n";
    assert_eq!(format_cycle(&dependencies, &find_cycle(&dependencies).unwrap()), lines);
}

fn upward_dependency_is_found() {
    let graph = Graph::new([
        (Path::new("error.rs"), "use crate::status::StatusBoard;"),
        (Path::new("status.rs"), "use crate::error::Error;"),
    ]);
    let wrong = wrong(&graph.below(&[]));
    assert_eq!(wrong, ["error -> status\n    error.rs:1: crate::status::StatusBoard\n"]);
}
