use super::*;
use crate::record::FIRST_OF_SETUP;
use crate::status::{Doing, Failed};

fn record(sequence: u64, stage: Stage) -> Record {
    Record {
        sequence,
        operation: "all-reduce".to_owned(),
        dtype: "f32".to_owned(),
        count: 1000,
        op: Some("sum".to_owned()),
        root: None,
        algorithm: "ring".to_owned(),
        label: Some(format!("bucket {sequence}")),
        phase: 0,
        step: 2,
        stage,
        waits_for: None,
        began_s_ago: 61.0,
        ended_s_ago: (stage != Stage::Running).then_some(60.5),
    }
}

/// Returns the dump of one of four ranks with this last call, which is #16 or #17.
fn dump(rank: Rank, last: Record) -> Dump {
    let state = if last.stage == Stage::Running { State::Inside } else { State::Outside };
    Dump {
        rank,
        ranks: 4,
        why: "requested".to_owned(),
        at_unix_s: 1.8e9,
        failed: None,
        doing: Doing {
            rank,
            host: "node1".to_owned(),
            process_id: 70 + rank as u32,
            state,
            since_s: 61.0,
            quiet: None,
            continues: false,
            group: None,
            last: Some(last.clone()),
        },
        records: if last.sequence == 17 { vec![record(16, Stage::Done), last] } else { vec![last] },
    }
}

fn flight(dumps: Vec<Dump>) -> Flight {
    Flight { ranks: 4, dumps: dumps.into_iter().map(|dump| (dump.rank, dump)).collect() }
}

#[test]
fn missing_rank_is_named_with_its_last_call() {
    let inside = |rank| dump(rank, record(17, Stage::Running));
    let flight = flight(vec![inside(0), inside(1), inside(2), dump(3, record(16, Stage::Done))]);
    assert_eq!(
        flight.findings(),
        [
            "ranks 0 to 2 have waited 61 s in all-reduce #17 \"bucket 17\" of 1000 f32, sum, by ring, and rank 3 is missing:\n  \
             rank 3 (process 73 on node1) has been outside collectives for 61 s; its last call was all-reduce #16 \"bucket 16\""
        ]
    );
    let table = flight.table();
    assert_eq!(table.lines().count(), 5);
    let last = "3     node1  73       outside  61 s   all-reduce #16 \"bucket 16\" of 1000 f32, sum, by ring  0.2   -";
    assert_eq!(table.lines().last(), Some(last), "{table}");
}

#[test]
fn very_long_names_do_not_widen_the_table() {
    let mut damaged = dump(1, record(16, Stage::Done));
    damaged.doing.host = "x".repeat(100_000);
    let table = flight(vec![dump(0, record(16, Stage::Done)), damaged]).table();
    let widths: Vec<_> = table.lines().map(str::len).collect();
    assert!(widths[1] < 2 * WIDEST && widths[2] > 100_000, "{widths:?}");
}

#[test]
fn quiet_left_and_idle_ranks_are_distinguished() {
    let mut dumps: Vec<_> = (0..4).map(|rank| dump(rank, record(17, Stage::Running))).collect();
    for (rank, state) in [(1, State::Quiet), (2, State::Left), (3, State::NotYet)] {
        let mut other = dump(rank, record(16, Stage::Done));
        other.doing.state = state;
        other.doing.quiet = (state == State::Quiet).then(|| "validation".to_owned());
        if state == State::NotYet {
            (other.doing.last, other.records) = (None, vec![]);
        }
        dumps[rank] = other;
    }
    let findings = flight(dumps).findings();
    let ends = [
        "rank 0 has waited 61 s in all-reduce #17 \"bucket 17\" of 1000 f32, sum, by ring, and ranks 1 to 3 are missing:",
        "rank 1 (process 71 on node1) has been in the quiet section \"validation\" for 61 s; its last call was all-reduce #16 \"bucket 16\"",
        "rank 2 (process 72 on node1) left 61 s ago; its last call was all-reduce #16 \"bucket 16\"",
        "rank 3 (process 73 on node1) has made no call in 61 s",
    ];
    assert_eq!(findings, [ends.join("\n  ")]);
}

#[test]
fn first_mismatch_is_reported_before_the_waits() {
    let mut dumps: Vec<_> = (0..4).map(|rank| dump(rank, record(17, Stage::Failed))).collect();
    dumps[1].records[0].count = 999;
    dumps[1].records[1].label = None;
    dumps[2].records[1].label = Some("loss".to_owned());
    let failed = Failed { rank: 2, cause: "another rank called something else".to_owned() };
    dumps[0].failed = Some(failed.clone());
    dumps[3].failed = Some(failed);
    let findings = flight(dumps).findings();
    assert_eq!(findings[0], "rank 2 (process 72 on node1) failed: another rank called something else");
    assert_eq!(
        findings[1],
        "ranks disagree: ranks 0, 2, 3 called all-reduce #16 \"bucket 16\" of 1000 f32, sum, by ring, but rank 1 called \
         all-reduce #16 \"bucket 16\" of 999 f32, sum, by ring"
    );
}

#[test]
fn different_labels_are_a_mismatch_and_lost_names_are_not() {
    let dumps = |label: Option<&str>| {
        let mut dumps: Vec<_> = (0..4).map(|rank| dump(rank, record(17, Stage::Running))).collect();
        dumps[1].records[1].label = label.map(str::to_owned);
        flight(dumps).mismatch()
    };
    assert_eq!(dumps(None), None);
    assert!(dumps(Some("loss")).unwrap().contains("but rank 1 called all-reduce #17 \"loss\""));
}

#[test]
fn steps_and_waits_within_one_call_are_listed() {
    let at = |rank, step, waits_for| dump(rank, Record { step, waits_for, ..record(17, Stage::Running) });
    let all = vec![at(0, 2, Some(3)), at(1, 2, Some(0)), at(2, 2, Some(1)), at(3, 1, None)];
    assert_eq!(
        flight(all.clone()).findings(),
        [
            "ranks 0 to 3 have been in all-reduce #17 \"bucket 17\" of 1000 f32, sum, by ring for 61 s, and no rank is missing:\n  \
             rank 0 (process 70 on node1) has been in all-reduce #17 \"bucket 17\" of 1000 f32, sum, by ring for 61 s, at step 2, waiting \
             for rank 3\n  \
             rank 1 (process 71 on node1) has been in all-reduce #17 \"bucket 17\" of 1000 f32, sum, by ring for 61 s, at step 2, waiting \
             for rank 0\n  \
             rank 2 (process 72 on node1) has been in all-reduce #17 \"bucket 17\" of 1000 f32, sum, by ring for 61 s, at step 2, waiting \
             for rank 1\n  \
             rank 3 (process 73 on node1) has been in all-reduce #17 \"bucket 17\" of 1000 f32, sum, by ring for 61 s, at step 1",
        ]
    );
    assert_eq!(
        flight(all.into_iter().filter(|dump| dump.rank != 2).collect()).findings(),
        [
            "ranks 0, 1, 3 have waited 61 s in all-reduce #17 \"bucket 17\" of 1000 f32, sum, by ring, and rank 2 is missing:\n  \
             rank 2 has not reported",
            "there is no flight recorder of rank 2: it ended before it could write one, or its node has another folder",
        ]
    );
}

#[test]
fn completed_calls_are_reported_and_set_up_calls_come_first() {
    let done = |rank| dump(rank, record(16, Stage::Done));
    let findings = flight((0..4).map(done).collect()).findings();
    assert_eq!(findings, ["no rank is in a call"]);

    let mut setting_up = dump(1, Record { label: None, ..record(FIRST_OF_SETUP + 1, Stage::Running) });
    setting_up.doing.state = State::Inside;
    let others = [0, 2, 3].map(|rank| dump(rank, record(0, Stage::Running)));
    let findings = flight(others.into_iter().chain([setting_up]).collect()).findings();
    assert!(findings[0].starts_with("ranks 0, 2, 3 have waited 61 s in all-reduce #0 "), "{findings:#?}");
    assert!(
        findings[0].contains("rank 1 is missing") && findings[0].contains("all-reduce #1 of the set-up"),
        "{findings:#?}"
    );

    let stage = |rank| if rank == 1 { Stage::Running } else { Stage::Done };
    let findings = flight((0..4).map(|rank| dump(rank, record(17, stage(rank)))).collect()).findings();
    assert!(
        findings[0].starts_with("rank 1 has been in all-reduce #17 "),
        "the others have completed it: {findings:#?}"
    );
}

#[test]
fn inconsistent_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let read = || Flight::read(folder.path());
    assert!(read().unwrap_err().to_string().contains("no flight recorders"));
    let write = |name: &str, dump: &Dump| {
        std::fs::write(path(name), serde_json::to_vec(dump).unwrap()).unwrap();
    };
    let good = dump(1, record(16, Stage::Done));
    write("rank-1.json", &good);
    std::fs::write(path("other.json"), "not ours").unwrap();
    assert_eq!(read().unwrap(), flight(vec![good.clone()]));

    let named = |name: &str, bytes: &[u8], why: &str| {
        std::fs::write(path(name), bytes).unwrap();
        let error = read().unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(why), "{error}");
        std::fs::remove_file(path(name)).unwrap();
    };
    let json = serde_json::to_vec(&dump(2, record(16, Stage::Done))).unwrap();
    named("rank-2.json", &json[..json.len() / 2], "EOF");
    named("rank-2.json", b"\xff\xfe", "expected value");
    named("rank-3.json", &json, "it is of rank 2");
    named(
        "rank-2.json",
        String::from_utf8(json).unwrap().replace("\"ranks\":4", "\"ranks\":5").as_bytes(),
        "world of",
    );
    assert!(Flight::read(&path("nothing")).unwrap_err().to_string().contains("nothing"));
}

#[test]
fn long_rank_lists_are_shortened() {
    assert_eq!(named(&[7]), "rank 7");
    assert_eq!(named(&[0, 1, 2]), "ranks 0 to 2");
    let even: Vec<_> = (0..50).map(|rank| 2 * rank).collect();
    let text = named(&even);
    assert!(text.starts_with("ranks 0, 2, 4, 6, ") && text.ends_with(", 38 and 30 more"), "{text}");
}
