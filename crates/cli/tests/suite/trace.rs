//! `unisono trace`.

use std::fs;
use std::process::Command;

use serde_json::Value;
use unisono_testing::{suite::Test, tests};

use crate::UNISONO;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        trace_connects_the_calls_of_ranks_and_names_a_bad_file,
        trace_of_a_rank_is_not_overwritten,
        one_of_several_processes_merges_or_reports
    ]
}

fn trace_of_a_rank_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (file, text) = (folder.path().join("trace-rank-0.json"), "{\n]}\n");
    fs::write(&file, text).unwrap();
    let mut command = Command::new(UNISONO);
    let output = command.arg("trace").arg(folder.path()).arg("--output").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("must not be the trace of a rank"), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

/// Two processes would write the same file.
fn one_of_several_processes_merges_or_reports() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("trace-rank-0.json"), "{\n]}\n").unwrap();
    for name in ["trace", "hang-report"] {
        let mut command = Command::new(UNISONO);
        command.arg(name).arg(folder.path()).envs([("RANK", "1"), ("WORLD_SIZE", "2")]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout.is_empty(), "{name}: {said}");
    }
    assert!(!folder.path().join("trace.json").exists());
}

fn trace_connects_the_calls_of_ranks_and_names_a_bad_file() {
    let folder = tempfile::tempdir().unwrap();
    let merge = || Command::new(UNISONO).arg("trace").arg(folder.path()).output().unwrap();
    let refused = |named: &str| {
        let output = merge();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{said}");
        assert!(said.starts_with("unisono: ") && said.contains(named), "{said}");
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
    let output = merge();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
    fs::write(file(1), "{\n{\"pid\":1}").unwrap();
    refused("trace-rank-1.json");
}
