//! The size of buckets, which is chosen automatically between nodes. These threads are declared to be nodes.

use super::*;
use unisono_testing::suite::Test;
use unisono_testing::tests;

fn chosen_bucket_size_is_reported_between_nodes() {
    let train = ["train", "--data", digits(), "--epochs", "1", "--hidden", "8", "--batch-size", "512"];
    let said = on_nodes("1,1", &train);
    assert!(said.contains("\nbuckets of 1M: predicted to cost at most 5 % more a byte than 64M\n"), "{said}");
    let said = on_nodes("1,1", &[&train[..], &["--bucket-bytes", "3M"]].concat());
    assert!(said.contains("\nbuckets of 3M: it was asked for\n"), "{said}");
    assert!(!on_nodes("2", &train).contains("buckets of"), "on one node there is nothing to overlap");
}

fn bench_step_uses_and_reports_the_bucket_size() {
    let step = ["bench-step", "--hidden", "8", "--batch-size", "4", "--steps", "1", "--format", "json"];
    let size = |nodes: &str, more: &[&str]| {
        let row = rows(&on_nodes(nodes, &[&step[..], more].concat())).pop().unwrap();
        (row["bucket_bytes"].as_u64().unwrap(), row["buckets_because"].as_str().unwrap().to_owned())
    };
    assert_eq!(size("2", &[]), (25 << 20, "all ranks share a node".to_owned()));
    assert_eq!(size("1,1", &[]).0, 1 << 20);
    assert_eq!(size("1,1", &["--overlap", "in-turn"]).0, 25 << 20);
    assert_eq!(size("1,1", &["--bucket-bytes", "64K"]), (64 << 10, "it was asked for".to_owned()));
}

fn simulated_buckets_match_the_trainer() {
    let cluster = ["--nodes", "2", "--ranks-per-node", "1", "--wire", "f32,bf16,int8", "--format", "json"];
    let model = ["simulate", "step", "--model", "mlp:8", "--backward-ms", "1"];
    let simulated = unisono(&[&model[..], &cluster].concat()).expect_success().stdout;
    let between: Vec<_> = rows(&simulated).into_iter().filter(|row| row["ranks"] == 2).collect();
    assert_eq!(between.len(), 3, "{simulated}");
    for row in between {
        let wire = row["wire"].as_str().unwrap();
        let step = ["bench-step", "--hidden", "8", "--batch-size", "4", "--steps", "1", "--format", "json"];
        let measured = rows(&on_nodes("1,1", &[&step[..], &["--wire", wire]].concat())).pop().unwrap();
        assert_eq!(row["bucket_bytes"], measured["bucket_bytes"], "{wire}");
    }
}

fn invalid_bucket_sizes_are_refused() {
    refused(&["train", "--bucket-bytes", "0"], &["--bucket-bytes is 0: it must be at least 1"]);
    refused(&["bench-step", "--bucket-bytes", "0"], &["--bucket-bytes must be at least 1, got `0`"]);
    refused(&["bench-step", "--bucket-bytes", "large"], &["such as 65536, 64K or 25M, or auto"]);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        chosen_bucket_size_is_reported_between_nodes,
        bench_step_uses_and_reports_the_bucket_size,
        simulated_buckets_match_the_trainer,
        invalid_bucket_sizes_are_refused,
    ]
}
