//! The commands that need no ranks, as used by people and programs.

use std::process::{Command, Stdio};

use unisono_testing::launch::Ended;
use unisono_testing::suite::Test;
use unisono_testing::tests;

use crate::{UNISONO, expect_refusal, rows, shell, unisono};

fn run(arguments: &str) -> Ended {
    unisono(&arguments.split_whitespace().collect::<Vec<_>>())
}

fn simulate(arguments: &str) -> Ended {
    run(&format!("simulate {arguments}"))
}

fn stdout(arguments: &str) -> String {
    simulate(arguments).expect_success().stdout
}

fn simulate_names_the_fastest_algorithm() {
    let table = stdout("all --nodes 16 --ranks-per-node 8 --bytes 1K");
    assert!(table.contains("all-reduce of 1024 bytes over 128 ranks, 8 on each of 16 node(s)"), "{table}");
    let rows: Vec<Vec<_>> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 10, "{table}");
    assert!(rows.is_sorted_by_key(|row| row[4].parse::<f64>().expect("a time")), "{table}");
    assert!(table.ends_with(&format!("# {} is fastest\n", rows[0][0])), "{table}");
}

fn simulate_uses_the_given_links() {
    let time_us = |links: &str| {
        let json = stdout(&format!("ring --nodes 2 --ranks-per-node 2 --bytes 4K --format json {links}"));
        let row: serde_json::Value = serde_json::from_str(&json).expect("one object");
        assert_eq!((row["algorithm"].as_str(), row["ranks"].as_u64()), (Some("ring"), Some(4)));
        assert_eq!((row["steps"].as_u64(), row["sent_bytes"].as_u64()), (Some(6), Some(6 << 10)));
        row["predicted_us"].as_f64().expect("a time")
    };
    // Six steps, each of 1 KiB between nodes, and 0.05 us for the rank.
    let expected = 6.0 * (10.0 + 1.024 + 0.05);
    assert!((time_us("--intra 1,1 --inter 10,1") - expected).abs() < 1e-6);
    assert!(time_us("--intra 1,1 --inter 100,1") > 600.0);
}

fn simulate_reports_algorithms_that_are_too_large() {
    let table = stdout("ring,all-to-all --nodes 257 --ranks-per-node 8 --bytes 1M");
    assert!(table.contains(" all-to-all         more than 4194304 messages"), "{table}");
    assert!(table.contains("# ring is fastest"), "{table}");
}

/// Returns the rows of `simulate step` for these layers, with links between nodes that have no latency and 1 byte per nanosecond.
fn steps(layers: &str, arguments: &str) -> Vec<serde_json::Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layers");
    std::fs::write(&file, layers).unwrap();
    let links = "--intra 0,100 --inter 0,1 --update-ms 0 --backward-ms 10 --format json";
    rows(&stdout(&format!("step --layers {} {links} {arguments}", file.display())))
}

fn is_about(found: &serde_json::Value, expected: f64) {
    let off = found.as_f64().expect("a number") / expected - 1.0;
    assert!(off.abs() < 0.01, "{found}, not {expected}");
}

fn step_waits_for_the_last_bucket() {
    // 4 MB are sent in both directions, half of them at a time.
    let rows = steps("1000x1000 # one layer\n", "--nodes 2 --ranks-per-node 1 --batch-size 7");
    let [alone, two] = &rows[..] else { panic!("{rows:?}") };
    is_about(&alone["step_ms"], 10.0);
    is_about(&alone["samples_per_s"], 700.0);
    is_about(&two["step_ms"], 14.0);
    is_about(&two["samples_per_s"], 1000.0);
    is_about(&two["efficiency"], 10.0 / 14.0);
    assert_eq!((&two["hidden_percent"], &two["ranks"], &two["buckets"]), (&0.0.into(), &2.into(), &1.into()));
    // The first of two buckets is in flight during the second half of the pass.
    let rows = steps("1000x500\n\n500x1000\n", "--nodes 2 --ranks-per-node 1 --bucket-bytes 1M");
    is_about(&rows[1]["step_ms"], 12.0);
    is_about(&rows[1]["hidden_percent"], 50.0);
    let in_turn = "--nodes 2 --ranks-per-node 1 --bucket-bytes 1M --overlap in-turn";
    is_about(&steps("1000x500\n500x1000\n", in_turn)[1]["step_ms"], 14.0);
    // There are four buckets, each of which takes half of a pass. The last one overtakes the others, and the next forward pass continues until it
    // needs them.
    let four = "500x500\n500x500\n500x500\n500x500\n";
    let of = |overlap| {
        let more =
            format!("--nodes 2 --ranks-per-node 1 --bucket-bytes 1M --forward-ms 8 --overlap {overlap}");
        steps(four, &more)[1]["step_ms"].as_f64().unwrap()
    };
    assert!(of("across") < of("beside") && of("beside") < of("in-turn"));
}

fn parameter_servers_are_predicted_beside_mirrored_training() {
    // 4 MB for each of two workers, in both directions through one port.
    let rows = steps("1000x1000\n", "--nodes 3 --ranks-per-node 1 --servers 1 --batch-size 10");
    let [.., mirrored, synchronous, asynchronous] = &rows[..] else { panic!("{rows:?}") };
    let strategies = [mirrored, synchronous, asynchronous].map(|row| row["strategy"].as_str().unwrap());
    assert_eq!(strategies, ["mirrored", "parameter-server, staleness 0", "parameter-server, unbounded"]);
    // The pull, which no forward pass overlaps, followed by the push, which overlaps the backward pass.
    is_about(&synchronous["step_ms"], 8.0 + 10.0);
    is_about(&synchronous["samples_per_s"], 20.0 / 0.018);
    // A single worker pulls for 4 ms, and its push is hidden. The port is busy for 8 of 14 ms.
    is_about(&asynchronous["step_ms"], 14.0);
    // Two servers update half of the parameters each.
    let of_two = "step --nodes 4 --ranks-per-node 1 --servers 2 --parameters 1M --backward-ms 1 --update-ms 8 --format json";
    assert_eq!(stdout(of_two).matches("\"update_ms\":4.0,").count(), 2);
}

fn throughput_of_the_largest_batch_does_not_overflow() {
    let rows = steps("8\n", &format!("--nodes 2 --ranks-per-node 1 --batch-size {}", usize::MAX));
    is_about(&rows[1]["samples_per_s"], 2.0 * usize::MAX as f64 / 0.01);
}

fn smaller_wire_formats_shorten_the_step_between_nodes() {
    let wires = "f32,bf16,int8,int4,onebit,topk:0.01,powersgd:4";
    let rows =
        steps("4000x4000\n", &format!("--nodes 2 --ranks-per-node 2 --bucket-bytes auto --wire {wires}"));
    let worlds: Vec<_> = rows.iter().map(|row| row["ranks"].as_u64().unwrap()).collect();
    assert_eq!(worlds, [vec![1], [2].repeat(7), [4].repeat(7)].concat());
    let exposed: Vec<_> =
        rows[8..].iter().map(|row| row["exposed_communication_ms"].as_f64().unwrap()).collect();
    let [f32, bf16, int8, int4, onebit, top_k, power_sgd] = exposed[..] else { panic!("{rows:?}") };
    assert!(f32 > bf16 && f32 > int8 && int8 > int4 && int4 > onebit, "{exposed:?}");
    assert!(top_k < f32 && power_sgd < f32, "{exposed:?}");
    let csv = stdout("step --model mlp:8 --backward-ms 1 --nodes 2 --ranks-per-node 1 --format csv");
    assert!(csv.starts_with("ranks,nodes,wire,") && csv.lines().count() == 3, "{csv}");
    let table = stdout("step --parameters 25.6M --backward-ms 100 --nodes 2 --ranks-per-node 8");
    assert!(table.contains("# 25600000 parameters, 128 samples per rank"), "{table}");
    assert_eq!(table.lines().filter(|line| !line.starts_with('#')).count(), 3, "{table}");
}

fn hang_report_explains_the_hang_and_names_a_bad_file() {
    let folder = tempfile::tempdir().unwrap();
    let report = || run(&format!("hang-report {}", folder.path().display()));
    let refused = |named: &str| {
        let ended = report();
        expect_refusal(&ended, &[named]);
        assert_eq!(ended.stdout, "");
    };
    refused("no flight recorders");
    let dump = |rank: usize, sequence: u64, stage: &str| {
        let call = format!(
            r#"{{"sequence":{sequence},"operation":"all-reduce","dtype":"f32","count":8,"op":"sum","root":null,"algorithm":"ring",
                "label":null,"phase":0,"step":1,"stage":"{stage}","waits_for":null,"began_s_ago":61.0,"ended_s_ago":null}}"#
        );
        let json = format!(
            r#"{{"rank":{rank},"ranks":2,"why":"asked for","at_unix_s":1.0,"failed":null,"records":[{call}],"doing":{{"rank":{rank},
                "host":"node1","process_id":7,"state":"inside","since_s":61.0,"quiet":null,"last":{call}}}}}"#
        );
        std::fs::write(folder.path().join(format!("rank-{rank}.json")), json).unwrap();
    };
    dump(0, 17, "running");
    dump(1, 16, "done");
    let said = report().expect_success().stdout;
    assert!(
        said.starts_with("rank 0 has waited 61 s in all-reduce #17 ")
            && said.contains("rank 1 is missing:\n  rank 1 (process 7 on node1) has "),
        "{said}"
    );
    // The finding, then the table after an empty line.
    assert_eq!(said.lines().count(), 6, "{said}");
    std::fs::write(folder.path().join("rank-1.json"), "{").unwrap();
    refused("rank-1.json");
}

/// Errors are reported with a remedy, and as an exit code.
fn doctor_fails_if_a_finding_is_wrong() {
    let doctor = |limit: &str| {
        let ended = shell(&format!("ulimit -n {limit} && exec \"$0\" doctor --threads 2"));
        (ended.status.code(), ended.stdout)
    };
    let (code, found) = doctor("99");
    assert_eq!(code, Some(1), "{found}");
    let wrong = "WRONG files        a process may open 99, but needs 102 and one for each registered array (ulimit\n                   -n)\n";
    assert!(found.contains(wrong), "{found}");
    let (code, found) = doctor("256");
    assert!(code == Some(0) && !found.contains("WRONG"), "{found}");
}

/// Commands that write to standard output.
const TALKING: [&str; 8] = [
    "--help",
    "explain ring --ranks 4",
    "explain pipeline --stages 2 --micro-batches 4",
    "verify --ranks 1:4",
    "simulate all --nodes 2 --ranks-per-node 2 --bytes 1K",
    "simulate step --parameters 1M --backward-ms 9 --nodes 2 --ranks-per-node 2",
    "doctor --threads 2",
    "bench --threads 2 --bytes 8:1K --iterations 3",
];

fn run_into(stdout: impl Into<Stdio>, arguments: &str) -> (Option<i32>, String) {
    let mut command = Command::new(UNISONO);
    let output =
        command.args(arguments.split_whitespace()).stdout(stdout).output().expect("the command starts");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

fn closed_pipe_is_not_an_error() {
    for arguments in TALKING {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(run_into(writer, arguments), (Some(0), String::new()), "{arguments}");
    }
}

fn full_disk_is_reported_in_one_line() {
    let line = "unisono: cannot write to standard output: No space left on device (os error 28)\n";
    for arguments in TALKING {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        assert_eq!(run_into(full, arguments), (Some(1), line.to_owned()), "{arguments}");
    }
}

/// Requests that exceed the memory of a node are refused in one line before any allocation.
fn requests_that_exceed_the_memory_are_refused() {
    let refused = |script: &str, said: &[&str]| expect_refusal(&shell(script), said);
    let needs = "arrays of 16 GiB on 64 ranks of a node need 2048 GiB, including copies, but only ";
    let all_to_all = "exec \"$0\" bench --threads 64 --bytes 16G --algorithm all-to-all";
    refused(all_to_all, &[needs, "of memory is available"]);
    refused(
        "export UNISONO_NODES=1,1 && exec \"$0\" bench --threads 2 --wire int8 --bytes 1024G",
        &["arrays of 1024 GiB on 2 ranks of a node need 10 TiB"],
    );
    refused("ulimit -v 4000000 && exec \"$0\" bench --threads 1024 --bytes 8", &["raise `ulimit -v`"]);
    refused("exec \"$0\" bench --threads 1025 --bytes 8", &["expected a whole number from 1 to 1024"]);
}

fn invalid_arguments_are_refused() {
    let world = "--nodes 2 --ranks-per-node 2";
    for (arguments, said) in [
        (format!("rimg {world} --bytes 1K"), "did you mean `ring`?"),
        (format!("ring {world} --bytes 1T"), "from 1 to 1024G bytes"),
        (format!("ring {world} --bytes 0"), "from 1 to 1024G bytes"),
        (format!("ring {world} --bytes 1K --intra 5"), "expected ALPHA_US,GB_PER_S"),
        (format!("ring {world} --bytes 1K --inter 5,0"), "a rate of 0 GB/s"),
        (
            "ring --nodes 0 --ranks-per-node 2 --bytes 1K".to_owned(),
            "expected a whole number from 1 to 32768",
        ),
        ("ring --nodes 9999 --ranks-per-node 9999 --bytes 1K".to_owned(), "are more than 32768 ranks"),
        ("all-to-all --nodes 512 --ranks-per-node 8 --bytes 1K".to_owned(), "all-to-all: more than"),
        (String::new(), "were not provided: --bytes <MIN:MAX"),
        (format!("step {world} --backward-ms 1"), "were not provided: <--model"),
        (format!("step {world} --backward-ms 1 --model cnn"), "such as mlp:1024,1024"),
        (format!("step {world} --backward-ms 1 --parameters 0"), "such as 25.6M"),
        (format!("step {world} --backward-ms 1 --layers /nowhere"), "cannot read `/nowhere`"),
        (format!("step {world} --backward-ms 0 --parameters 1M"), "must be above 0"),
        (format!("step {world} --backward-ms 1 --parameters 1M --servers 4"), "at most 3 of 4 ranks"),
        (
            format!("step {world} --backward-ms 1 --parameters 1M --wire int9"),
            "there are f32, bf16 and f16, and between nodes int8",
        ),
        (
            format!("step {world} --backward-ms 1 --parameters 1M --wire threshold:1"),
            "simulate topk:FRACTION",
        ),
        (format!("step {world} --backward-ms 1 --parameters 1M --bucket-bytes 0"), "such as 25M"),
        (
            format!("step {world} --backward-ms 1 --parameters 1M --tuning /nowhere"),
            "--tuning: cannot read `/nowhere`",
        ),
    ] {
        expect_refusal(&simulate(&arguments), &[said]);
    }
}

/// Returns a small training run on two ranks, on the device that is requested.
#[cfg(feature = "candle")]
fn train(device: &str) -> Ended {
    let data = crate::digits();
    run(&format!("train --data {data} --threads 2 --epochs 1 --hidden 8 --batch-size 500 {device}"))
}

#[cfg(feature = "candle")]
fn run_reports_its_device() {
    // Calls that a GPU does not support run on the CPU, which matters on machines with a GPU.
    let auto = "on the CPU: on a GPU gradients are sent as f32, not as bf16\n";
    let has_gpus = unisono::internals::gpus() > 0;
    for (device, said, is_said) in
        [("--device cpu", "on the CPU: requested\n", true), ("--wire bf16", auto, has_gpus)]
    {
        let stdout = train(device).expect_success().stdout;
        assert_eq!(stdout.contains(said), is_said, "{stdout}");
    }
}

#[cfg(all(feature = "candle", not(feature = "cuda")))]
fn build_without_cuda_reports_unused_gpus() {
    let stdout = train("--device auto").expect_success().stdout;
    let has_gpus = unisono::internals::gpus() > 0;
    let said = stdout.contains("on the CPU: this program was built without the feature `cuda`\n");
    assert_eq!(said, has_gpus, "{stdout}");
}

#[cfg(feature = "candle")]
fn unavailable_gpus_are_refused_by_name() {
    let wire = ("--device cuda --wire f16", "gradients are sent as f32, not as f16; leave it out");
    let name = ("--device gpu", "no device is called `gpu`");
    let mut refused = vec![wire, name];
    if cfg!(not(feature = "cuda")) {
        refused.push((
            "--device cuda",
            "cannot train on GPUs: this program was built without the feature `cuda`",
        ));
    }
    for (arguments, said) in refused {
        expect_refusal(&train(arguments), &[said]);
    }
}

#[cfg(feature = "candle")]
fn inspect_input_names_the_stage_that_limits_training() {
    let data = crate::digits();
    let table = run(&format!("inspect-input --data {data} --epochs 1 --input-threads 1 --batch-size 100"));
    let text = table.expect_success().stdout;
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].starts_with("epoch 1: 2000 samples in batches of 100; upper bound for training: "),
        "{text}"
    );
    let names = lines[2..5].iter().map(|line| line.split_whitespace().next().unwrap_or_default());
    assert!(names.eq(["source", "batches", "prefetch"]), "{text}");
    assert!(lines[5].starts_with("batches (1 thread) is busy "), "{text}");

    let lines = rows(&run(&format!("inspect-input --data {data} --format json --prefetch 3")).stdout);
    assert_eq!(lines.iter().map(|line| line["epoch"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2)]);
    // Batches of the next epoch are prefetched, and the last one is counted just after it was passed on.
    let ahead = 3 + 1;
    let made = lines[1]["stages"][2]["elements"].as_u64().expect("a count");
    assert!((32 - ahead..=32).contains(&made), "{lines:?}");

    let refused = run("inspect-input --data digits --augment");
    expect_refusal(&refused, &["--augment has no effect without --data images:DIR"]);
}

pub(crate) fn tests() -> Vec<Test> {
    #[allow(unused_mut, reason = "some tests need a feature")]
    let mut tests = tests![
        simulate_names_the_fastest_algorithm,
        simulate_uses_the_given_links,
        simulate_reports_algorithms_that_are_too_large,
        step_waits_for_the_last_bucket,
        parameter_servers_are_predicted_beside_mirrored_training,
        throughput_of_the_largest_batch_does_not_overflow,
        smaller_wire_formats_shorten_the_step_between_nodes,
        hang_report_explains_the_hang_and_names_a_bad_file,
        doctor_fails_if_a_finding_is_wrong,
        closed_pipe_is_not_an_error,
        full_disk_is_reported_in_one_line,
        requests_that_exceed_the_memory_are_refused,
        invalid_arguments_are_refused,
    ];
    #[cfg(feature = "candle")]
    tests.extend(tests![run_reports_its_device]);
    #[cfg(all(feature = "candle", not(feature = "cuda")))]
    tests.extend(tests![build_without_cuda_reports_unused_gpus]);
    #[cfg(feature = "candle")]
    tests.extend(tests![unavailable_gpus_are_refused_by_name]);
    #[cfg(feature = "candle")]
    tests.extend(tests![inspect_input_names_the_stage_that_limits_training]);
    tests
}
