//! `unisono bench`: rows, tables, and every operation.

use std::process::Command;

use super::{DEADLINE, launched, launched_with, temporary};
use crate::{UNISONO, count, refused, rows, unisono};
use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::Test;
use unisono_testing::tests;

fn bench_rows_have_the_documented_fields() {
    let arguments = [
        "bench",
        "--algorithm",
        "all,auto,mpi",
        "--bytes",
        "8:128K:128",
        "--format",
        "json",
        "--iterations",
        "3",
    ];
    let stdout = launched(3, &arguments).expect_success().stdout;
    let rows = rows(&stdout);
    assert_eq!(rows.len(), 12 * 3);
    for row in &rows {
        for key in [
            "algorithm",
            "ran",
            "operation",
            "bytes",
            "count",
            "dtype",
            "op",
            "ranks",
            "nodes",
            "transport",
            "memory",
        ] {
            assert!(!row[key].is_null(), "{key} in {row}");
        }
        for key in ["min", "p50", "p95", "max"] {
            assert!(row["time_us"][key].as_f64().unwrap() > 0.0, "{key} in {row}");
        }
        for key in ["skew_percent", "algbw_gb_per_s", "busbw_gb_per_s"] {
            assert!(row[key].is_number(), "{key} in {row}");
        }
        let predicted = &row["predicted_us"];
        assert!(if row["algorithm"] == "mpi" { predicted.is_null() } else { predicted.is_number() }, "{row}");
        assert_eq!((row["wrong"].as_u64(), row["ranks"].as_u64()), (Some(0), Some(3)));
        assert!(row["oversubscribed"].is_boolean());
    }
    let ran = |asked: &str| {
        rows.iter().filter(|row| row["algorithm"] == asked).map(|row| row["ran"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ran("mpi"), ["mpi"; 3]);
    assert_eq!(ran("auto").len(), 3);
}

fn bench_tables_and_csv() {
    let arguments =
        ["bench", "--threads", "2", "--bytes", "1K", "--iterations", "2", "--dtype", "bf16", "--op", "mean"];
    let table = unisono(&arguments).expect_success().stdout;
    assert!(table.contains("busbw") && table.contains("1 rows, no element wrong"), "{table}");
    let csv = unisono(&[&arguments[..], &["--format", "csv"]].concat()).expect_success().stdout;
    let columns: Vec<_> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [22; 2], "{csv}");
}

/// The names of all operations, as `--operation all` measures them.
const OPERATIONS: [&str; 9] = [
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all-to-all",
    "barrier",
];

/// Checks the rows of `bench --operation all` at three sizes.
fn every_operation_is_right(rows: &[serde_json::Value], ranks: u64, algorithms: &[&str]) {
    for operation in OPERATIONS {
        for algorithm in algorithms {
            let is_of =
                |row: &&serde_json::Value| row["operation"] == operation && row["algorithm"] == *algorithm;
            let rows: Vec<_> = rows.iter().filter(is_of).collect();
            assert_eq!(rows.len(), if operation == "barrier" { 1 } else { 3 }, "{operation} by {algorithm}");
            for row in rows {
                assert_eq!((row["wrong"].as_u64(), row["ranks"].as_u64()), (Some(0), Some(ranks)), "{row}");
                assert!(row["time_us"]["p50"].as_f64().unwrap() > 0.0, "{row}");
                let reduces = ["all-reduce", "reduce-scatter", "reduce"].contains(&operation);
                assert_eq!(row["op"], if reduces { "sum" } else { "none" });
                assert_eq!(row["predicted_us"].is_null(), *algorithm == "mpi", "{row}");
                let factor = match operation {
                    "all-reduce" => 2.0 * (ranks - 1) as f64 / ranks as f64,
                    "broadcast" | "reduce" => 1.0,
                    "barrier" => 0.0,
                    _ => (ranks - 1) as f64 / ranks as f64,
                };
                let bandwidth = |kind: &str| row[kind].as_f64().unwrap();
                let off = bandwidth("busbw_gb_per_s") - factor * bandwidth("algbw_gb_per_s");
                assert!(off.abs() < 1e-9, "{row}");
            }
        }
    }
}

fn bench_measures_every_operation() {
    let arguments = "bench --operation all --bytes 4:300K:256 --iterations 3 --format json";
    let arguments: Vec<_> = arguments.split(' ').collect();
    // MPI does not distinguish registered memory.
    for (memory, worlds) in [("slice", &[2, 3][..]), ("registered", &[2])] {
        let arguments = [&arguments[..], &["--memory", memory]].concat();
        let stdout = unisono(&[&arguments[..], &["--threads", "3"]].concat()).expect_success().stdout;
        every_operation_is_right(&rows(&stdout), 3, &["auto"]);
        for &ranks in worlds {
            let stdout = launched(ranks, &arguments).expect_success().stdout;
            every_operation_is_right(&rows(&stdout), ranks as u64, &["auto", "mpi"]);
        }
    }
    // MPI moves elements of every type.
    let halves = ["bench", "--operation", "all-gather,scatter", "--dtype", "bf16", "--bytes", "1000"];
    let stdout = launched(3, &[&halves[..], &["--format", "json"]].concat());
    let rows = rows(&stdout.expect_success().stdout);
    assert!(rows.iter().any(|row| row["algorithm"] == "mpi" && row["operation"] == "scatter"));
    assert!(rows.iter().all(|row| row["wrong"] == 0));
}

fn bench_omits_algorithms_that_lack_an_operation() {
    let arguments =
        "bench --threads 2 --algorithm all --operation broadcast,barrier --bytes 1K --iterations 2";
    let arguments: Vec<_> = arguments.split(' ').collect();
    let ended = unisono(&arguments).expect_success();
    assert_eq!(ended.stderr.lines().count(), 2, "one line for each operation in {}", ended.stderr);
    for said in ["ring, hierarchical-copy, rail are skipped: broadcast is not supported", "skipped: barrier"]
    {
        assert_eq!(count(&ended.stderr, said), 1, "{said:?} in {}", ended.stderr);
    }
    assert_eq!((count(&ended.stdout, "# broadcast\n"), count(&ended.stdout, "# barrier\n")), (1, 1));
    assert!(ended.stdout.contains("3 rows, no element wrong"), "{}", ended.stdout);
    let alone = ["bench", "--threads", "2", "--operation", "barrier", "--algorithm", "ring"];
    refused(&alone, &["unisono: nothing was measured: ring is skipped: "]);
}

/// Random numbers have no small number of dominant elements, and are no product of thin matrices. The errors of compression are therefore
/// predictable.
fn bench_reports_the_errors_of_compressed_formats() {
    let arguments =
        "bench --wire int8,int4,onebit,topk:0.1,threshold:2,powersgd:4 --bytes 4:1M:512 --iterations 2";
    let arguments: Vec<_> = arguments.split(' ').collect();
    let json = [&arguments[..], &["--format", "json"]].concat();
    let rows = rows(&launched_with(3, &json, &[("UNISONO_NODES", "2,1")]).expect_success().stdout);
    let threads = |format| {
        let mut command = Command::new(UNISONO);
        command.env("UNISONO_NODES", "2,1").args(&arguments).args(["--threads", "3", "--format", format]);
        launch::run(command, DEADLINE).expect_success().stdout
    };
    let names = ["f32", "int8", "int4", "onebit", "topk:0.1", "threshold:2", "powersgd:4"];
    let found: Vec<_> = rows.iter().map(|row| row["wire"].as_str().unwrap()).collect();
    assert_eq!(found, names.repeat(3));
    for (name, errors) in names.into_iter().zip([
        0.0..1e-6,
        1e-3..2e-2,
        5e-2..0.3,
        0.5..0.99,
        0.5..0.99,
        0.5..0.999,
        0.5..0.999,
    ]) {
        let row = rows.iter().rfind(|row| row["wire"] == name).unwrap();
        let error = row["relative_error"].as_f64().unwrap();
        assert!(errors.contains(&error) && row["time_us"]["p50"].as_f64() > Some(0.0), "{row}");
        assert!(row["largest_error"].as_f64() > Some(error) || name == "f32", "{row}");
        assert_eq!((&row["bytes"], &row["nodes"], &row["ranks"]), (&(1 << 20).into(), &2.into(), &3.into()));
    }
    let csv = threads("csv");
    let columns: Vec<_> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [13; 22], "{csv}");
    let table = threads("table");
    assert!(table.contains("# 3 ranks on 2 nodes") && count(&table, " powersgd:4 ") == 3, "{table}");
}

/// Measures the latency and bandwidth of messages between the first and the last of three ranks, and computation concurrent with asynchronous calls.
fn bench_measures_messages_and_overlap() {
    let arguments = "bench --operation send-recv,all-reduce --bytes 8:64K:8192 --iterations 3 --warm-up 1 --overlap \
                     --check=false --format json";
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    let ended = launched(3, &arguments).expect_success();
    assert_eq!(count(&ended.stderr, "mpi is skipped: send-recv is not supported"), 1, "{}", ended.stderr);
    let rows = rows(&ended.stdout);
    let names: Vec<_> =
        rows.iter().map(|row| (row["operation"].as_str(), row["algorithm"].as_str())).collect();
    let (messages, reduces) = (Some("send-recv"), Some("all-reduce"));
    let (auto, mpi) = (Some("auto"), Some("mpi"));
    let reduced = [(reduces, auto), (reduces, mpi)].repeat(2);
    assert_eq!(names, [vec![(messages, auto); 2], reduced].concat());
    for row in &rows {
        assert!(
            row["time_us"]["p50"].as_f64() > Some(0.0) && row["algbw_gb_per_s"].as_f64() > Some(0.0),
            "{row}"
        );
        assert!(row["wrong"].is_null(), "{row}");
        let overlap = row["overlap_percent"].as_f64();
        assert!(overlap.is_none_or(|percent| (0.0..=100.0).contains(&percent)), "{row}");
        assert!(overlap.is_some() || row["operation"] == "send-recv" || row["algorithm"] == "mpi", "{row}");
    }
}

fn overlap_on_gpus_is_refused() {
    let both = ["bench", "--threads", "2", "--memory", "device", "--overlap"];
    refused(&both, &["--overlap has no effect with --memory device"]);
}

/// An interruption by the user is not reported as a failed rank.
fn interrupted_bench_ends_quietly() {
    let folder = temporary("interrupted");
    let mut command = launch::mpirun(2, UNISONO);
    command.args(["bench", "--iterations", "1000000", "--bytes", "64K"]).env("UNISONO_FLIGHT_DIR", &folder);
    let Ended { status, stdout, stderr } = launch::run_and_interrupt(command, DEADLINE);
    assert!(stdout.contains("# 2 ranks on 1 node(s)"), "it has begun: {stdout}");
    assert!(!stderr.contains("unisono: ") && !stderr.contains("panicked"), "{status}: {stderr}");
    assert!(!std::path::Path::new(&folder).exists(), "{folder} is left behind");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        bench_rows_have_the_documented_fields,
        bench_tables_and_csv,
        bench_measures_every_operation,
        bench_omits_algorithms_that_lack_an_operation,
        bench_reports_the_errors_of_compressed_formats,
        bench_measures_messages_and_overlap,
        overlap_on_gpus_is_refused,
        interrupted_bench_ends_quietly,
    ]
}
