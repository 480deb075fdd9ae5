//! Ranks that are killed and restarted.

use super::launched;

/// A killed rank cannot join a world that has ended, which is no failure of the job.
pub(super) fn rank_that_is_killed_at_the_end_is_no_failure() {
    let wait = "until [ -e $0/go ]; do sleep 0.05; done";
    let killed =
        |then: &str| format!("[ $UNISONO_JOIN ] && {{ touch $0/go; {then}; exit 1; }}; kill -KILL $$");
    for (rank_0, rank_1, said) in [
        // The replacement fails after the end, and just before.
        (wait, killed("sleep 1"), "restarts left: 2"),
        (&format!("{wait}; sleep 1"), killed(":"), "restarts left: 2"),
        ("touch $0/go", format!("{wait}; sleep 1; kill -KILL $$"), "the others continue without it"),
    ] {
        let script = format!("if [ $RANK = 0 ]; then {rank_0}; else {rank_1}; fi");
        let ended = launched("-n 2 --elastic", &script);
        assert!(ended.status.success() && ended.stderr.contains(said), "{script}: {}", ended.stderr);
    }
    let script = format!("if [ $RANK = 0 ]; then {wait}; sleep 1; exit 3; fi; {}", killed(":"));
    assert!(!launched("-n 2 --elastic", &script).status.success());
}

/// The failure of a restarted rank counts if rank 0 stops because of it.
pub(super) fn failure_that_ends_rank_0_is_reported() {
    let rank_0 = "trap 'exit 75' TERM; while :; do sleep 0.05; done";
    let rank_1 = "[ $UNISONO_JOIN ] && exit 1; kill -KILL $$";
    let script = format!("if [ $RANK = 0 ]; then {rank_0}; else {rank_1}; fi");
    let ended = launched("-n 2 --elastic --grace-s 1", &script);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
}
