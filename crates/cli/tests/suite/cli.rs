//! The command `unisono` as used by people and programs.

use std::time::{Duration, Instant};

pub(crate) mod bench;

use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

use crate::{UNISONO, count, expect_refusal, rows, unisono};

const DEADLINE: Duration = Duration::from_secs(120);

fn launched(ranks: usize, arguments: &[&str]) -> Ended {
    launched_with(ranks, arguments, &[])
}

fn launched_with(ranks: usize, arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let mut command = launch::mpirun(ranks, UNISONO);
    command.args(arguments).envs(variables.iter().copied());
    launch::run(command, DEADLINE)
}

fn verify_reports_correct_algorithms() {
    let stdout = unisono(&["verify", "--algorithm", "ring,rail", "--ranks", "1:9"]).expect_success().stdout;
    assert_eq!(count(&stdout, "correct"), 2);
}

fn explain_prints_one_drawing_under_mpirun() {
    let stdout = launched(2, &["explain", "tree", "--ranks", "5"]).expect_success().stdout;
    assert_eq!(count(&stdout, "tree: all-reduce over 5 ranks"), 1);
    let how = ["explain", "rail", "--ranks", "4", "--nodes", "2", "--program", "--bytes", "16M"];
    let stdout = unisono(&how).expect_success().stdout;
    assert_eq!(count(&stdout, "pipelined, in 32 blocks"), 1, "{stdout}");
    let broadcast = ["explain", "ring", "--ranks", "4", "--operation", "broadcast"];
    crate::refused(&broadcast, &["ring does not support broadcast"]);
}

fn explain_draws_pipelines() {
    let explain = |more: &[&str]| unisono(&[&["explain", "pipeline"], more].concat());
    let stdout = explain(&["--stages", "4", "--micro-batches", "8"]).expect_success().stdout;
    assert_eq!(count(&stdout, "27.3 % of the time ranks wait"), 1, "{stdout}");
    // The number of micro-batches is not a multiple of the ranks, which leaves gaps.
    let stdout = explain(&["--stages", "4", "--micro-batches", "6", "--schedule", "interleaved:2"])
        .expect_success()
        .stdout;
    assert_eq!(count(&stdout, "% of the time ranks wait"), 1, "{stdout}");
    let ended = explain(&["--stages", "4", "--micro-batches", "6", "--schedule", "outwards"]);
    expect_refusal(&ended, &["there are gpipe, 1f1b and interleaved:STAGES"]);
    crate::refused(&["explain", "--ranks", "4"], &["<ALGORITHM>"]);
}

fn doctor_reports_each_finding_once() {
    let stdout = launched(2, &["doctor"]).expect_success().stdout;
    assert_eq!(count(&stdout, "ok    world        ranks: 2, on 1 node(s): 2\n"), 1, "{stdout}");
    for subject in ["MPI", "cores", "memory", "GPU", "/dev/shm", "files", "network"] {
        let told = stdout.lines().any(|line| line.get(6..).is_some_and(|line| line.starts_with(subject)));
        assert!(told || (subject == "GPU" && cfg!(not(feature = "nccl"))), "{subject} in {stdout}");
    }
    let stdout = launched_with(2, &["doctor"], &[("UNISONO_TRANSPORT", "mpi")]).expect_success().stdout;
    assert_eq!(
        count(
            &stdout,
            "note  memory       ranks of a node communicate by messages, because of UNISONO_TRANSPORT=mpi"
        ),
        1
    );
}

/// An error of any rank's command line is reported once, and no rank waits for that rank.
fn invalid_arguments_on_one_rank_end_all_ranks() {
    let program = UNISONO;
    for (typed, by) in [(["--bytes", "--byts"], 1), (["--byts", "--bytes"], 0)] {
        let mut command = launch::mpirun(1, program);
        command.args(["bench", typed[0], "8", ":", "-n", "1", program, "bench", typed[1], "16"]);
        let started = Instant::now();
        let ended = launch::run(command, DEADLINE);
        let line = format!(
            "unisono: on rank {by} ({}): unexpected argument `--byts` found; did you mean `--bytes`? see unisono bench --help\n",
            host()
        );
        assert_eq!(count(&ended.stderr, &line), 1, "{line:?} once in\n{}", ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
        assert!(started.elapsed() < Duration::from_secs(30), "after {:?}", started.elapsed());
    }
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").expect("Linux says it").trim().to_owned()
}

fn unknown_environment_variable_is_named_once() {
    let bench = ["bench", "--algorithm", "ring", "--bytes", "8", "--iterations", "2"];
    let stderr = launched_with(2, &bench, &[("UNISONO_TIMEOUT", "5")]).expect_success().stderr;
    let line = "unisono: the environment variable UNISONO_TIMEOUT is set, and nothing reads it; did you mean UNISONO_TIMEOUT_S?";
    assert_eq!(count(&stderr, line), 1, "{stderr}");
    let quiet = [("UNISONO_TIMEOUT", "5"), ("UNISONO_WARNINGS", "off")];
    assert_eq!(count(&launched_with(2, &bench, &quiet).expect_success().stderr, "nothing reads it"), 0);
}

/// As [`crate::refused`], under a launcher, which takes much longer to start than the command: one rank reports it, and no rank is left running.
fn refused(ranks: usize, arguments: &[&str], said: &str) {
    refused_with(ranks, arguments, &[], said);
}

fn refused_with(ranks: usize, arguments: &[&str], variables: &[(&str, &str)], said: &str) {
    let ended = launched_with(ranks, arguments, variables);
    assert_eq!(count(&ended.stderr, said), 1, "{said:?} once in\n{}", ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
}

/// One rank reports an error of the command line, of the options, and of the world. Other errors of these kinds follow the same paths.
fn invalid_arguments_are_refused_once() {
    refused(3, &["bench", "--algorithm", "buterfly"], "did you mean `butterfly`?");
    refused(
        2,
        &["bench", "--algorithm", "ring,rail+nccl"],
        "rail+nccl works on GPU memory, not on --memory slice",
    );
    for command in ["bench", "bench-step"] {
        refused(2, &[command, "--wire", "int8"], "all ranks share a node: start ranks on several nodes");
    }
    refused(2, &["explain", "ring", "--ranks", "65", "--svg"], "--svg draws at most 64 ranks, got `65`");
    refused(2, &["bench", "--dtype", "bf16", "--algorithm", "auto,mpi"], "MPI has no bf16");
    for (arguments, said) in [
        (&["--bytes", "8:4"][..], "or MIN:MAX[:FACTOR]"),
        (
            &["--wire", "int9"],
            "there are int8, int4, int8:stochastic, int4:stochastic, onebit, topk:FRACTION",
        ),
        (&["--wire", "int8", "--op", "max"], "cannot be used with"),
        (&["--operation", "brodcast"], "did you mean `broadcast`?"),
        (&["--operation", "gather", "--memory", "device"], "supports all-reduce only, not gather"),
        (&["--algorithm", "mpi"], "need ranks under mpirun"),
        (&["--algorithm", "tree:0-8K;ring:4K-"], "tree:0-8K and ring:4K- are both for arrays of 4K"),
        (&["--algorithm", "ring:9"], "expected ALGORITHM:FROM-TO"),
    ] {
        crate::refused(&[&["bench", "--threads", "2"], arguments].concat(), &[said]);
    }
    crate::refused(&["verify", "--ranks", "0:3"], &["expected A:B"]);
}

#[cfg(feature = "candle")]
fn invalid_training_options_are_refused_once() {
    refused(3, &["train", "--data", "idx:no/such/place"], "`no/such/place`: is no directory");
    refused(2, &["train", "--epochs", "0"], "--epochs is 0");
    let few = ["train", "--data", crate::digits()];
    refused(2, &[&few[..], &["--hidden", "1000000,1000000"]].concat(), "the 2 rank(s) on ");
    refused(2, &[&few[..], &["--log-dir", "/proc/curves"]].concat(), "cannot write curves to `/proc/curves`");
    for (option, value, said) in [
        ("--data", "text:no-such.txt", "cannot read `no-such.txt`"),
        ("--data", "cifar", "unknown data set `cifar`"),
        ("--batch-size", "0", "--batch-size is 0"),
        ("--batch-size", "10001", "a global batch of 20002 samples on 2 ranks"),
        ("--model", "transformer", "use the mlp, the cnn or the resnet"),
        ("--algorithm", "rimg", "did you mean `ring`?"),
    ] {
        let data: &[&str] = if option == "--data" { &[] } else { &["--data", crate::digits()] };
        crate::refused(&[&["train", "--threads", "2", option, value], data].concat(), &[said]);
    }
}

#[cfg(feature = "candle")]
fn directory_with_checkpoints_of_another_run_is_refused_once() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let data = crate::digits();
    let run = ["train", "--data", data, "--epochs", "1", "--batch-size", "50", "--checkpoint-dir", place];
    launched(2, &run).expect_success();
    let said = format!("holds the checkpoints of another run (mlp on {data}, after 20 steps)");
    refused(2, &run, &said);
}

#[cfg(feature = "candle")]
fn files_in_the_wrong_format_are_refused_once() {
    let directory = std::env::temp_dir().join(format!("unisono-refused-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let source = format!("idx:{}", directory.display());
    for (bytes, said) in [(8, "is truncated: 8 bytes, expected 16"), (16, "its magic number is 0x00000000")] {
        for name in ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"] {
            std::fs::write(directory.join(name), vec![0; bytes]).unwrap();
        }
        crate::refused(&["train", "--threads", "2", "--data", &source], &[said]);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Returns the text of a tuning file in which a single pass takes a second, which no user would choose.
fn slowed(text: &str) -> String {
    let slow = |line: &str| match line.split_once(", gb_per_s") {
        Some((range, _)) => format!("{range}, gb_per_s = 1e-6 }},\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(slow).collect()
}

/// Returns a path that no other test uses.
fn temporary(name: &str) -> String {
    std::env::temp_dir().join(format!("unisono-{}-{name}", std::process::id())).display().to_string()
}

fn rules_select_the_algorithm_by_size() {
    let rules = "tree:0-1K; butterfly:1K-64K";
    let sizes = ["--bytes", "8:512K:256", "--format", "json", "--iterations", "2"];
    let stdout =
        launched(3, &[&["bench", "--algorithm", rules], &sizes[..]].concat()).expect_success().stdout;
    let ran: Vec<_> = rows(&stdout).iter().map(|row| row["ran"].clone()).collect();
    assert_eq!((&ran[0], &ran[1]), (&"tree".into(), &"butterfly".into()));
    assert_eq!(ran.len(), 3, "a size without a rule is measured too");
    assert_eq!(rows(&stdout)[0]["algorithm"], "tree:0-1K;butterfly:1K-64K");

    refused_with(
        2,
        &["bench"],
        &[("UNISONO_ALGORITHM", "rimg:0-")],
        "UNISONO_ALGORITHM: no algorithm is called",
    );
}

fn constants_written_by_tune_are_used() {
    let file = temporary("tuned.toml");
    let said = launched(2, &["tune", "--out", &file]).expect_success().stdout;
    assert!(said.contains("[shm.slice] 2 ranks") && said.contains(&file), "{said}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("[shm.registered]") && text.contains("\"any\""), "{text}");

    let bench =
        ["bench", "--algorithm", "auto,ring", "--bytes", "64K", "--iterations", "3", "--format", "json"];
    let predicted = |variables: &[(&str, &str)]| {
        let stdout = launched_with(2, &bench, variables).expect_success().stdout;
        let rows = rows(&stdout);
        (rows[0]["ran"].clone(), rows[1]["predicted_us"].as_f64().unwrap())
    };
    let variables = [("UNISONO_TUNING", file.as_str())];
    assert_ne!(predicted(&variables), predicted(&[]), "measured constants are not the defaults");

    std::fs::write(&file, slowed(&text)).unwrap();
    let by_messages = ["all-to-all", "master-worker", "tree", "recursive-doubling"];
    let ran = predicted(&variables).0;
    assert!(by_messages.iter().any(|name| ran == *name), "{ran}: which of these is fastest was measured");

    // Constants for threads are added, and existing ones are kept.
    unisono(&["tune", "--threads", "2", "--out", &file]).expect_success();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("[shm.slice]") && text.contains("[threads]"), "{text}");
    std::fs::remove_file(&file).unwrap();
}

fn tune_finishes_quickly_with_more_ranks_than_cores() {
    let file = temporary("turns.toml");
    let cores = std::thread::available_parallelism().expect("known").get();
    let said = launched(cores + 1, &["tune", "--out", &file]).expect_success().stdout;
    assert!(said.contains("[shm.slice] a context switch between ranks") && said.contains(&file), "{said}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("[shm.registered]") && text.contains("hand_over_us = "), "{text}");
    std::fs::remove_file(&file).unwrap();
}

fn constants_are_measured_on_first_use_of_a_machine() {
    let caches = temporary("caches");
    let kept = || -> Vec<_> {
        let files = std::fs::read_dir(format!("{caches}/unisono")).into_iter().flatten();
        files.map(|file| file.unwrap().path()).collect()
    };
    let bench =
        ["bench", "--algorithm", "round-robin", "--bytes", "64K", "--iterations", "3", "--format", "json"];
    let predicted_us = |ranks, tuning: &str| {
        let variables = [("UNISONO_TUNING", tuning), ("XDG_CACHE_HOME", &caches)];
        let stdout = launched_with(ranks, &bench, &variables).expect_success().stdout;
        rows(&stdout)[0]["predicted_us"].as_f64().unwrap()
    };
    let default_us = predicted_us(2, "default");
    assert_eq!(kept(), Vec::<std::path::PathBuf>::new(), "nothing is measured");

    // More ranks than cores take long.
    for &ranks in if suite::is_deep() { &[2, 4][..] } else { &[2] } {
        // An unstable measurement is not cached.
        let keeps = (0..30).any(|_| {
            let measured_us = predicted_us(ranks, "auto");
            assert!(ranks != 2 || measured_us != default_us, "{measured_us}");
            !kept().is_empty()
        });
        assert!(keeps, "no measurement was stable");
        let [file] = &kept()[..] else { panic!("{:?}", kept()) };
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains("[shm.slice]") && text.contains("[shm.registered]"), "{text}");
        // The next program uses the cached constants: here a pass that takes a second.
        std::fs::write(file, slowed(&text)).unwrap();
        assert!(predicted_us(ranks, "auto") > 1e6);
        // A damaged file is ignored.
        std::fs::write(file, "messages of nothing").unwrap();
        assert!(predicted_us(ranks, "auto") < 1e6);
        std::fs::remove_dir_all(&caches).unwrap();
    }
    // Without a writable cache, each program measures.
    std::fs::write(&caches, "").unwrap();
    assert_ne!(predicted_us(2, "auto"), default_us);
    std::fs::remove_file(&caches).unwrap();
}

fn tune_writes_the_file_that_the_next_run_reads() {
    let caches = temporary("tuned");
    let run = |arguments: &str| {
        let mut command = std::process::Command::new(UNISONO);
        command
            .args(arguments.split_whitespace())
            .envs([("UNISONO_TUNING", "auto"), ("XDG_CACHE_HOME", &caches)]);
        launch::run(command, DEADLINE).expect_success().stdout
    };
    // With more ranks than cores, only context switches are measured, which takes a twentieth of the time.
    let cores = std::thread::available_parallelism().expect("known").get();
    let threads = if suite::is_deep() { 2 } else { cores + 1 };
    let said = run(&format!("tune --threads {threads}")).replace("\n    ", " ");
    let file = said.split("written to ").nth(1).and_then(|rest| rest.split(';').next()).unwrap();
    assert!(
        file.starts_with(&caches) && said.contains("the next run with the same number of ranks"),
        "{said}"
    );
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, slowed(&text)).unwrap();
    let bench =
        format!("bench --threads {threads} --algorithm round-robin --bytes 64K --iterations 3 --format json");
    let bench = run(&bench);
    assert!(rows(&bench)[0]["predicted_us"].as_f64() > Some(1e6), "{bench}");
    std::fs::remove_dir_all(&caches).unwrap();
}

fn bad_tuning_files_are_refused_once() {
    let file = temporary("broken.toml");
    let variables = [("UNISONO_TUNING", file.as_str())];
    refused_with(3, &["bench", "--bytes", "8"], &variables, "UNISONO_TUNING: cannot read");
    std::fs::write(&file, "[mpi]\nmessages = []\nmesages = []\n").unwrap();
    refused_with(3, &["bench", "--bytes", "8"], &variables, "line 3: unknown field `mesages`");
    refused(2, &["tune", "--out", &file], "is not a tuning file, and stays unchanged");
    std::fs::remove_file(&file).unwrap();
    crate::refused(
        &["tune", "--threads", "2", "--out", "no/such/place.toml"],
        &["cannot write `no/such/place.toml`"],
    );
    refused(1, &["tune", "--out", &file], "one rank reaches no other");
}

pub(crate) fn tests() -> Vec<Test> {
    #[allow(unused_mut, reason = "some tests need a feature")]
    let mut tests = tests![
        verify_reports_correct_algorithms,
        explain_prints_one_drawing_under_mpirun,
        explain_draws_pipelines,
        doctor_reports_each_finding_once,
        invalid_arguments_on_one_rank_end_all_ranks,
        unknown_environment_variable_is_named_once,
        invalid_arguments_are_refused_once,
        rules_select_the_algorithm_by_size,
        tune_finishes_quickly_with_more_ranks_than_cores,
        tune_writes_the_file_that_the_next_run_reads,
        bad_tuning_files_are_refused_once,
    ];
    tests.push(Test::new("constants_written_by_tune_are_used", constants_written_by_tune_are_used).deep());
    // Measurements are cached only if no other program uses the cores.
    let first_use = constants_are_measured_on_first_use_of_a_machine;
    tests.push(Test::new("constants_are_measured_on_first_use_of_a_machine", first_use).timed());
    #[cfg(feature = "candle")]
    tests.extend(tests![invalid_training_options_are_refused_once]);
    #[cfg(feature = "candle")]
    tests.extend(tests![directory_with_checkpoints_of_another_run_is_refused_once]);
    #[cfg(feature = "candle")]
    tests.extend(tests![files_in_the_wrong_format_are_refused_once]);
    tests
}
