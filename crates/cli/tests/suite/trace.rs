//! `unisono trace`.

use std::fs;
use std::process::Command;

use serde_json::Value;
use unisono_testing::{suite::Test, tests};

use crate::{UNISONO, expect_refusal, refused, shell, unisono};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        trace_connects_the_calls_of_ranks_and_names_a_bad_file,
        trace_of_a_rank_is_not_overwritten,
        failed_merge_leaves_no_file,
        one_of_several_processes_merges_or_reports
    ]
}

fn trace_of_a_rank_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (file, text) = (folder.path().join("trace-rank-0.json"), "{\n]}\n");
    fs::write(&file, text).unwrap();
    let words = ["trace", folder.path().to_str().unwrap(), "--output", file.to_str().unwrap()];
    refused(&words, &["must not be the trace of a rank"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

/// A process that may write no byte to files meets an error as on a full disk.
fn failed_merge_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("trace-rank-0.json"), "{\n]}\n").unwrap();
    let merge = |limit: &str| shell(&format!("{limit} exec \"$0\" trace {}", folder.path().display()));
    let ended = merge("trap '' XFSZ; ulimit -f 0;");
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    assert!(ended.stderr.contains("trace.json`: File too large"), "{ended}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    merge("").expect_success();
    let trace = fs::read(folder.path().join("trace.json")).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    assert_eq!(trace["traceEvents"], Value::Array(Vec::new()), "no rank has made a call");
}

/// Two processes would write the same file, or print the same lines.
fn one_of_several_processes_merges_or_reports() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("trace-rank-0.json"), "{\n]}\n").unwrap();
    let place = folder.path().to_str().unwrap();
    let mut commands = vec![["trace", place], ["hang-report", place]];
    if cfg!(feature = "candle") {
        commands.extend([["inspect-input", "--seed=1"], ["train", "--write-config"]]);
    }
    for words in commands {
        let mut command = Command::new(UNISONO);
        command.args(words).envs([("RANK", "1"), ("WORLD_SIZE", "2")]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout.is_empty(), "{words:?}: {said}");
    }
    assert!(!folder.path().join("trace.json").exists());
}

fn trace_connects_the_calls_of_ranks_and_names_a_bad_file() {
    let folder = tempfile::tempdir().unwrap();
    let merge = || unisono(&["trace", folder.path().to_str().unwrap()]);
    let refused = |named: &str| {
        let ended = merge();
        expect_refusal(&ended, &[named]);
        assert_eq!(ended.stdout, "");
    };
    refused("no traces");
    let file = |rank: usize| folder.path().join(format!("trace-rank-{rank}.json"));
    let write = |rank: usize, ts: f64| {
        let event = |name: &str, ts: f64, args: &str| {
            format!(r#"{{"ph":"X","pid":{rank},"tid":1,"name":"{name}","ts":{ts},"dur":5.0,"args":{args}}}"#)
        };
        let call = event("all-reduce", ts, r#"{"call":"world #0"}"#);
        let span = event("forward", ts + 10.0, "{}");
        let text = format!("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{call},\n{span}\n]}}\n");
        fs::write(file(rank), text).unwrap();
    };
    [(0, 1002.0), (1, 1000.5), (2, 1001.0)].iter().for_each(|&(rank, ts)| write(rank, ts));
    let merged = merge().expect_success();
    let trace = fs::read(folder.path().join("trace.json")).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(events.len(), 6);
    let calls = events.iter().filter(|event| event["name"] == "all-reduce");
    let flows: Vec<_> = calls
        .map(|call| (call["ts"].as_f64().unwrap(), call["flow_in"] == true, call["flow_out"] == true))
        .collect();
    // The flow leads from the rank that starts first to the next, and on to the last.
    assert_eq!(flows, [(1.5, true, false), (0.0, false, true), (0.5, true, true)]);
    assert!(events.iter().all(|event| event["bind_id"].is_null() == (event["name"] == "forward")));
    assert_eq!(merged.stderr, "");
    write(3, 5.0);
    let said = merge().stderr;
    assert!(said.lines().count() == 1 && said.contains("trace-rank-3.json` ends before"), "{said}");
    fs::write(file(1), "{\n{\"pid\":1}").unwrap();
    refused("trace-rank-1.json");
}
