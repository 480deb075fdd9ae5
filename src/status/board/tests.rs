//! Tests of the status board between ranks.

use super::*;

/// Returns the rank that reported the first failure, and the cause.
fn failed(status: &StatusBoard) -> Option<(Rank, String)> {
    status.failure().map(|FirstFailure { by, cause, .. }| (by, cause))
}

#[test]
fn first_cause_is_kept() {
    let statuses = StatusBoard::of_threads(3).unwrap();
    assert_eq!(failed(&statuses[0]), None);
    assert!(statuses[2].fail(7, 7, "the disk is full"));
    assert!(!statuses[1].fail(1, 1, "because of rank 7"));
    assert_eq!(failed(&statuses[0]), Some((7, "the disk is full".to_owned())));
}

#[test]
fn failure_is_reported_even_if_its_reporter_was_killed() {
    let statuses = StatusBoard::of_threads(3).unwrap();
    // The writes of rank 1 until it was killed.
    statuses[1].layout.head().failed.store(2, Ordering::Release);
    assert_eq!(failed(&statuses[0]), None, "it may be about to write the cause");
    statuses[2].set_gone(1);
    let (by, cause) = failed(&statuses[0]).unwrap();
    assert!(by == 1 && cause.contains("was killed before it could report the cause"), "{cause}");
}

#[test]
fn departure_is_visible_to_all_ranks() {
    let statuses = StatusBoard::of_threads(2).unwrap();
    assert!(!statuses[0].has_left(1));
    statuses[1].leave(1);
    assert!(statuses[0].has_left(1) && !statuses[0].has_left(0));
    assert_eq!(statuses[0].doing(1).state, State::Left);
}

#[test]
fn quiet_section_of_any_rank_counts() {
    let statuses = StatusBoard::of_threads(2).unwrap();
    assert!(!statuses[0].is_quiet());
    statuses[1].begin_quiet("validation");
    statuses[1].begin_quiet("inner");
    statuses[1].end_quiet();
    assert!(statuses[0].is_quiet());
    let doing = statuses[0].doing(1);
    assert_eq!((doing.state, doing.quiet.as_deref()), (State::Quiet, Some("validation")));
    statuses[1].end_quiet();
    assert!(!statuses[0].is_quiet());
    assert_eq!(statuses[0].doing(1).state, State::NotYet);
    statuses[0].set_quiet_elsewhere(true);
    assert!(statuses[1].is_quiet());
    statuses[0].set_quiet_elsewhere(false);
    assert!(!statuses[1].is_quiet());
}

#[test]
fn quiet_sections_of_a_rank_end_with_its_process() {
    let statuses = StatusBoard::of_threads(3).unwrap();
    statuses[1].begin_quiet("validation");
    statuses[1].begin_quiet("inner");
    statuses[2].begin_quiet("saving");
    statuses[0].set_gone(1);
    statuses[2].set_gone(1);
    assert!(statuses[0].is_quiet(), "rank 2 is alive");
    statuses[2].end_quiet();
    assert!(!statuses[0].is_quiet());
}

#[test]
fn ranks_that_have_left_need_not_be_terminated() {
    let statuses = StatusBoard::of_threads(3).unwrap();
    statuses[0].leave(0);
    statuses[1].begin_termination();
    assert!(!statuses[1].all_are_terminating(), "rank 2 is not");
    statuses[2].begin_termination();
    assert!(statuses[1].all_are_terminating());
    statuses[2].leave(2);
    assert!(statuses[1].all_are_terminating(), "it left after the signal");
}

#[test]
fn group_fails_only_with_its_members() {
    let of = |position: usize, world: &[StatusBoard]| {
        let group = StatusBoard::of_threads(2).unwrap().remove(position);
        group.set_parent(world[2 * position + 1].clone(), [1, 3].into());
        group
    };
    let world = StatusBoard::of_threads(4).unwrap();
    let (first, second) = (of(0, &world), of(1, &world));
    assert!(!first.is_quiet() && failed(&first).is_none());
    first.begin_quiet("checkpoint");
    assert!(world[0].is_quiet() && second.is_quiet());
    first.end_quiet();
    assert!(!first.is_quiet() && !world[0].is_quiet());
    world[2].begin_quiet("validation");
    assert!(second.is_quiet());
    world[0].fail(2, 2, "it is not a member of the group");
    assert_eq!(failed(&first), None);
    world[0].set_gone(2);
    assert_eq!(failed(&first), None);
    world[0].set_gone(3);
    assert_eq!(failed(&first), Some((1, PROCESS_ENDED.to_owned())), "the world keeps only its first failure");

    let world = StatusBoard::of_threads(4).unwrap();
    let group = of(0, &world);
    world[0].leave(3);
    assert!(!group.has_left(1) && failed(&group).is_none());
    world[0].set_gone(3);
    assert!(!world[0].has_died(3) && group.has_died(1) && failed(&group).is_some());
    group.leave(1);
    assert!(!group.has_died(1) && failed(&group).is_none());

    let world = StatusBoard::of_threads(4).unwrap();
    let group = of(0, &world);
    world[0].fail(3, 3, "its process was killed");
    world[0].set_gone(3);
    assert!(group.has_died(1) && !group.has_died(0));
    assert_eq!(failed(&group), Some((1, "its process was killed".to_owned())));
    assert!(group.fail(0, 0, "of its own") && failed(&group).unwrap().0 == 0, "its own cause comes first");
}
