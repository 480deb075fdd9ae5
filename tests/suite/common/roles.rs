//! Roles for all kinds of worlds. One job plays several, one after the other, since a job takes a second to start.

use std::process::ExitCode;

use unisono::{Choice, Communicator};
use unisono_testing::launch::Ended;
use unisono_testing::suite::is_deep;

use super::memory::Memory;
use super::{
    bits, custom, errors, groups, in_flight, parts, plans, point_to_point, stress, tags, thresholds, vendors,
};

const SEPARATOR: &str = " + ";

/// Returns the role of a job that plays all of these.
pub fn job(roles: &[&str]) -> String {
    roles.join(SEPARATOR)
}

/// Joins the world, and plays the roles of a job. `own` plays a module's own roles, and returns false for others.
pub fn play(job: &str, own: impl Fn(&str, &mut Communicator) -> bool) -> ExitCode {
    let mut comm = unisono::init().unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(3)
    });
    println!("rank {} of {} over {}", comm.rank(), comm.ranks(), comm.transport());
    for role in job.split(SEPARATOR) {
        comm.set_choice(Choice::Auto).unwrap();
        if comm.rank() == 0 {
            println!("begins: {role}");
        }
        if !own(role, &mut comm) {
            play_one(role, &mut comm);
        }
        if comm.rank() == 0 {
            println!("ends: {role}");
        }
    }
    ExitCode::SUCCESS
}

fn play_one(role: &str, comm: &mut Communicator) {
    // The quick suite tests one kind of memory in each role, and all kinds in random calls.
    let memories = |quick: &[Memory], all: &[Memory]| if is_deep() { all.to_vec() } else { quick.to_vec() };
    match role {
        "conformance" => super::conformance(comm, Memory::Slices),
        "registered" => {
            let all = [Memory::Parts, Memory::Mixed, Memory::Registered];
            memories(&all[..1], &all).into_iter().for_each(|memory| super::conformance(comm, memory));
        }
        "thresholds" => {
            let quick = [Memory::Mixed, Memory::Parts];
            memories(&quick, &Memory::ALL).into_iter().for_each(|memory| thresholds::cross(comm, memory));
        }
        "bits" => [Memory::Slices, Memory::Mixed].into_iter().for_each(|memory| bits::agree(comm, memory)),
        "blocks" => {
            let all = [Memory::Mixed, Memory::Slices];
            memories(&all[..1], &all).into_iter().for_each(|memory| bits::agree_in_blocks(comm, memory));
        }
        "groups" => groups::conformance(comm),
        "groups conform" => groups::inside(comm),
        "stress" => {
            let calls = if is_deep() { 300 } else { 100 };
            stress::calls(comm, calls);
            parts::calls(comm, calls);
            plans::calls(comm, calls / 2);
        }
        "vendors" => vendors::agree(comm),
        "in flight" => in_flight::conformance(comm),
        "point to point" => {
            point_to_point::conformance(comm);
            tags::conformance(comm);
            tags::many_in_flight(comm, 200);
        }
        "custom" => custom::conformance(comm),
        "refused" => errors::refused(comm),
        "joins" => {}
        _ => panic!("no such role: {role}"),
    }
}

/// Checks that all ranks joined a world over this transport, and that the job has played all roles.
///
/// # Panics
/// If it has not, with the name of the role that failed.
pub fn expect(ended: &Ended, ranks: usize, roles: &[&str], transport: &str) {
    let begun = ended.stdout.lines().filter_map(|line| line.strip_prefix("begins: ")).next_back();
    assert!(ended.status.success(), "role `{}` failed: {ended}", begun.unwrap_or("none begun"));
    for role in roles {
        assert!(ended.stdout.contains(&format!("ends: {role}\n")), "role `{role}` was not played: {ended}");
    }
    for rank in 0..ranks {
        let joined = format!("rank {rank} of {ranks} over {transport}\n");
        assert!(ended.stdout.contains(&joined), "expected `{}` in {ended}", joined.trim_end());
    }
}
