//! Runs whose optimizer is sharded: they have the same bits as unsharded runs, and either kind resumes from the other's checkpoints.

use super::*;
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

/// Returns the human-readable output of a run on a small table. The middle layer has its own bucket.
fn trained(launched: &[&str], more: &[&str]) -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sharded.csv");
    if !file.exists() {
        // Several tests may write the same table concurrently.
        let written = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        table(written.path(), 90);
        written.persist(&file).unwrap();
    }
    let source = source(&file);
    let run = ["train", "--data", &source, "--global-batch", "16", "--epochs", "3", "--hidden", "600,600"];
    let said = unisono(&[launched, &run, more].concat()).expect_success().stdout;
    // Removes the breaks of long lines.
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the final hash of the parameters.
fn hash(said: &str) -> &str {
    let is_hash = |word: &&str| word.len() == 16 && word.bytes().all(|digit| digit.is_ascii_hexdigit());
    said.split([' ', ';']).rfind(is_hash).expect("the last line has it")
}

fn threads(ranks: &str, more: &[&str]) -> String {
    trained(&[], &[&["--threads", ranks], more].concat())
}

fn sharded_run_has_the_bits_of_an_unsharded_run() {
    let all: &[&str] = if suite::is_deep() { &["1", "2", "3", "4"] } else { &["3"] };
    for ranks in all {
        for more in [
            &[][..],
            &["--optimizer", "adamw", "--algorithm", "ring"],
            &["--clip-norm", "0.2", "--nesterov", "--algorithm", "round-robin"],
            &["--wire", "bf16", "--algorithm", "ring"],
        ] {
            let (one, other) =
                (threads(ranks, more), threads(ranks, &[more, &["--shard-optimizer"]].concat()));
            assert_eq!(hash(&other), hash(&one), "{ranks} ranks, {more:?}");
            assert!(other.contains("optimizer state are sharded") && !one.contains("are sharded"));
        }
    }
    let ring = threads("3", &["--algorithm", "ring", "--shard-optimizer"]);
    assert!(ring.contains("1 of 2 buckets are reduce-scattered"), "{ring}");
    let tree = threads("2", &["--order", "world-invariant", "--shard-optimizer"]);
    assert!(tree.contains("0 of 2 buckets are reduce-scattered"), "{tree}");
    assert_eq!(hash(&tree), hash(&threads("4", &["--order", "world-invariant"])));
}

fn processes_and_threads_have_the_same_bits() {
    for &ranks in if suite::is_deep() { &["2", "3", "4"][..] } else { &["3"] } {
        let more = ["--algorithm", "ring", "--shard-optimizer"];
        let processes = trained(&["launch", "-n", ranks, "--", UNISONO], &more);
        assert_eq!(hash(&processes), hash(&threads(ranks, &more[..2])), "{ranks} ranks");
    }
}

fn checkpoints_do_not_depend_on_sharding() {
    let optimizer = ["--optimizer", "adamw", "--order", "world-invariant", "--checkpoint-every", "5"];
    let whole = threads("2", &optimizer[..4]);
    let changes = [(("4", true), ("2", false)), (("1", false), ("4", true)), (("2", true), ("4", true))];
    for (before, after) in changes.into_iter().take(if suite::is_deep() { 3 } else { 2 }) {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path();
        let run = |(ranks, is_sharded): (&str, bool)| {
            let sharded: &[&str] = if is_sharded { &["--shard-optimizer"] } else { &[] };
            let place = ["--checkpoint-dir", kept.to_str().unwrap(), "--resume", "--keep", "100"];
            threads(ranks, &[&optimizer[..], &place, sharded].concat())
        };
        assert_eq!(hash(&run(before)), hash(&whole));
        forget_after(5, kept);
        assert_eq!(hash(&run(after)), hash(&whole), "{before:?}, then {after:?}");
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        sharded_run_has_the_bits_of_an_unsharded_run,
        processes_and_threads_have_the_same_bits,
        checkpoints_do_not_depend_on_sharding,
    ]
}
