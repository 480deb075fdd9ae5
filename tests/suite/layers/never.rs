//! Words that must not occur in the code of some modules: a rank in `memory`, MPI in `executor`, an algorithm's name in `select`.

use std::path::Path;

use unisono_testing::{suite::Test, tests};

use super::files::files;
use super::reader::read_all;

/// The names of algorithms, except those that are operations too.
const ALGORITHMS: [&str; 9] = [
    "MasterWorker",
    "RoundRobin",
    "Tree",
    "DoubleTree",
    "Butterfly",
    "RecursiveDoubling",
    "Ring",
    "HierarchicalCopy",
    "Rail",
];

/// Modules, by the prefixes of their files' paths, and the words that must not occur in their code.
const NEVER: [(&str, &[&str], &[&str]); 29] = [
    ("collectives/src/", &["model"], &["Algorithm"]),
    ("collectives/src/", &["clock"], &ALGORITHMS),
    ("collectives/src/", &["execution"], &ALGORITHMS),
    // Hierarchical algorithms are accessed by their descriptors.
    ("src/", &[""], &["HierarchicalCopy", "Rail"]),
    ("src/", &["select", "method"], &ALGORITHMS),
    ("crates/cli/src/", &[""], &ALGORITHMS),
    ("src/", &["kernels"], &["Rank", "rank", "Step"]),
    ("crates/compress/src/", &["kernels"], &["Rank", "Step"]),
    ("src/", &["memory"], &["Rank", "rank", "ranks"]),
    // It only holds state, and ends no process.
    ("src/", &["status"], &["exit", "abort", "spawn", "set_hook", "signal_hook", "TcpStream", "TcpListener"]),
    ("src/", &["transport"], &["Schedule", "Plan", "Step"]),
    ("src/", &["transport/bootstrap"], &["Shared", "Mpi", "Fabric"]),
    (
        "src/",
        &[
            "transport/assemble",
            "transport/far",
            "transport/link",
            "transport/join",
            "transport/node",
            "transport/tcp",
            "transport/agreement",
            "transport/warnings",
        ],
        &["mpi", "Mpi"],
    ),
    ("src/", &["transport/shared"], &["mpi", "Mpi"]),
    ("src/", &["executor", "collective", "communicator"], &["mpi", "between_nodes"]),
    ("crates/compress/src/", &[""], &["mpi", "Mpi", "Bucket", "bucket"]),
    // The program alone determines the actions of a rank.
    (
        "src/",
        &["executor.rs", "executor/bound", "executor/format", "executor/run"],
        &["Algorithm", "is_shared_by", "can_pipeline"],
    ),
    ("src/", &["nccl"], &["Plan", "Schedule", "Step"]),
    ("src/", &["gpu", "device"], &["Step", "candle_core"]),
    ("crates/bench/src/", &[""], &["print", "println", "eprint", "eprintln"]),
    ("crates/data/src/", &["pipeline"], &["Split", "Batch", "Inputs", "Schema"]),
    ("crates/train/src/", &["checkpoint"], &["Communicator"]),
    ("crates/candle/src/", &["model"], &["Buckets", "buckets"]),
    ("crates/candle/src/", &["network"], &["model"]),
    ("crates/cli/src/", &["family", "supervise"], &["mpi", "unisono"]),
    ("crates/cli/src/", &["launch"], &["mpi", "Communicator"]),
    (
        "crates/c/src/",
        &[""],
        &["mpi", "Mpi", "internals", "exit", "abort", "spawn", "set_hook", "println", "eprintln"],
    ),
    (
        "crates/python/src/",
        &[""],
        &["mpi", "Mpi", "torch", "internals", "exit", "abort", "set_hook", "println", "eprintln"],
    ),
    ("benches/", &["duel"], &["internals"]),
];

pub(super) fn tests() -> Vec<Test> {
    tests![no_module_uses_forbidden_words, only_code_is_searched,]
}

fn no_module_uses_forbidden_words() {
    for root in [
        "src/",
        "collectives/src/",
        "crates/bench/src/",
        "crates/compress/src/",
        "crates/data/src/",
        "crates/train/src/",
        "crates/candle/src/",
        "crates/cli/src/",
        "crates/c/src/",
        "crates/python/src/",
        "benches/",
    ] {
        let sources = files(root);
        let files = read_all(sources.iter().map(|(path, text)| (path.as_path(), text.as_str())));
        for (_, prefixes, never) in NEVER.iter().filter(|(of, _, _)| *of == root) {
            for prefix in *prefixes {
                let here: Vec<_> = files.iter().filter(|file| file.path.starts_with(prefix)).collect();
                assert!(!here.is_empty(), "there is no {root}{prefix} any more");
                for file in here {
                    for (word, line) in &file.source.words {
                        assert!(!never.contains(&&**word), "{root}{}:{line} contains {word}", file.path);
                    }
                }
            }
        }
    }
}

fn only_code_is_searched() {
    let is_found = |text: &str| {
        let files = read_all([(Path::new("one.rs"), text)]);
        files[0].source.words.iter().any(|(word, _)| word == "exit")
    };
    for code in [
        "use std::process::{self, exit};",
        "fn f() { std::process::exit(1) }",
        "fn f() { g!(x.exit()) }",
        "mod exit {}",
    ] {
        assert!(is_found(code), "{code}");
    }
    for other in [
        "// exit",
        "const S: &str = \"exit\";",
        "#[cfg(test)] mod tests { fn f() { exit() } }",
        "fn exits() {}",
    ] {
        assert!(!is_found(other), "{other}");
    }
}
