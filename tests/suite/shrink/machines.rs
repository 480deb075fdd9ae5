//! Ranks of several machines, which agree over their connections.

use unisono::{Communicator, Error, ErrorCode, Result};
use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::{self, Test, is_deep};

use super::script::Script;
use super::{DEADLINE, SHORT, expect_lines, failure, sum};

pub(super) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("five machines become four and two", machines_one_by_one).unless(launch::no_containers),
    ];
    for (name, role, line, ranks) in [
        ("a group of machines continues without one of them", "group", "2 of the group are left", 2),
        ("a group of machines ends when a member shrinks its world", "member", "2 are left", 2),
        ("fewer machines than the minimum do not continue", "minimum", "too few are left", 2),
        ("a remote rank that is stopped while it shrinks is left out", "stops", "2 are left", 2),
    ] {
        let test = Test::new(name, move || {
            let ended = machines(if role == "group" { 4 } else { 3 }, role);
            let count = ended.stdout.lines().filter(|printed| *printed == line).count();
            assert_eq!(count, ranks, "{ended}");
            assert!(role != "stops" || ended.stdout.contains("rank 1 is out"), "{ended}");
        });
        tests.push(test.unless(launch::no_containers));
    }
    let absent = Test::new("a remote rank that does not shrink is named", machine_is_absent);
    tests.push(absent.unless(launch::no_containers));
    let seeds = if is_deep() { 60 } else { 4 };
    let killed = move || (0..seeds).for_each(machines_of);
    let name = "ranks of several machines that are killed at any moment";
    tests.push(Test::new(name, killed).unless(launch::no_containers));
    tests
}

/// Starts each rank on a separate machine, so that ranks agree over their connections.
fn machines(ranks: usize, role: &str) -> Ended {
    let mut command = launch::containers(ranks, &launch::this_program());
    suite::play(&mut command, "shrink", role).env("UNISONO_WARNINGS", "off");
    launch::run(command, DEADLINE)
}

fn machines_one_by_one() {
    expect_lines(&machines(5, "one by one"), "2 are left", 2);
}

/// Rank 2 is alive, and does not call `shrink`.
pub(super) fn play_absent(mut comm: Communicator) -> Result<()> {
    sum(&mut comm)?;
    if comm.rank() == 2 {
        std::thread::sleep(5 * SHORT);
        return Ok(());
    }
    comm.set_timeout(SHORT);
    let error = comm.shrink().unwrap_err();
    assert!(matches!(error, Error::Missing { other: 2, process_id: None, .. }), "{error}");
    println!("rank 2 is missing");
    Ok(())
}

/// Rank 1 of four ends. The group of ranks 0 to 2 continues without it.
pub(super) fn play_group(mut comm: Communicator) -> Result<()> {
    let group = comm.group(&[2, 1, 0])?;
    sum(&mut comm)?;
    match comm.rank() {
        1 => launch::kill_this_process(),
        // It keeps its failed world until the others are done.
        3 => std::thread::sleep(10 * SHORT),
        _ => {
            let mut group = group.expect("this rank is in the group");
            assert_eq!(failure(&mut group).failed_rank(), Some(1));
            let mut group = group.shrink()?;
            assert_eq!((sum(&mut group)?, group.former_ranks()), (2, &[0, 2][..]));
            println!("2 of the group are left");
        }
    }
    Ok(())
}

pub(super) fn play_minimum(mut comm: Communicator) -> Result<()> {
    sum(&mut comm)?;
    comm.set_minimum_ranks(3);
    if comm.rank() == 1 {
        launch::kill_this_process();
    }
    failure(&mut comm);
    let error = comm.shrink().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Failed, "{error}");
    println!("too few are left");
    Ok(())
}

/// Rank 1 calls `shrink` before the others, is stopped in it, and continues when the others have continued.
pub(super) fn play_stops(mut comm: Communicator) -> Result<()> {
    sum(&mut comm)?;
    if comm.rank() == 1 {
        let own = std::process::id();
        let stops = format!("sleep 1; kill -STOP {own}; sleep 40; kill -CONT {own}");
        let mut stops = std::process::Command::new("sh").args(["-c", &stops]).spawn().unwrap();
        let error = comm.shrink().unwrap_err();
        let Error::Partitioned { rank: 1, lost } = &error else { panic!("{error}") };
        assert!(!lost.is_empty() && error.code() == ErrorCode::Partitioned, "{error}");
        println!("rank 1 is out");
        stops.wait().unwrap();
        return Ok(());
    }
    std::thread::sleep(3 * SHORT);
    let mut comm = comm.shrink()?;
    assert_eq!((sum(&mut comm)?, comm.former_ranks()), (2, &[0, 2][..]));
    println!("2 are left");
    Ok(())
}

fn machine_is_absent() {
    expect_lines(&machines(3, "absent"), "rank 2 is missing", 2);
}

fn machines_of(seed: u64) {
    let script = Script::new(seed);
    let survivors = script.survivors();
    let ended = machines(script.ranks(), &format!("script {seed}"));
    expect_lines(&ended, &format!("went on as {survivors:?}"), survivors.len());
}
