//! System limits that are too low, and forbidden system calls.

use std::path::{Path, PathBuf};
use std::process::Command;

use unisono_testing::launch::{Ended, this_program};
use unisono_testing::suite::Test;
use unisono_testing::tests;

use super::{launch, our_lines, play, ranks, run};
use crate::count;

/// Runs a small job in a shell after the command `before`.
fn in_shell(before: &str, count: usize, role: &str) -> Ended {
    let mpirun = launch::mpirun(count, &this_program());
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{before} && exec \"$0\" \"$@\"")).arg(mpirun.get_program());
    play(command.args(mpirun.get_args()), role);
    command.envs(mpirun.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run(command)
}

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        low_limit_of_open_files_is_an_error_that_names_the_limit,
        soft_limit_of_open_files_is_raised_to_the_hard_limit,
        low_limit_of_address_space_is_an_error_that_names_the_limit,
    ];
    let filtered = tests![
        forbidden_copies_are_replaced_and_reported_once,
        forbidden_shared_memory_is_replaced,
        forbidden_shared_memory_without_mpi_is_replaced_by_tcp,
    ];
    tests.extend(filtered.into_iter().map(|test| test.unless(no_filters)));
    let mounted = tests![small_shared_memory_folder_is_reported_once];
    tests.extend(mounted.into_iter().map(|test| test.unless(no_mount)));
    let grouped = tests![low_memory_limit_is_an_error_and_does_not_kill_ranks];
    tests.extend(grouped.into_iter().map(|test| test.unless(no_group)));
    tests
}

fn no_filters() -> Option<String> {
    let is_there = Path::new("/proc/sys/kernel/seccomp/actions_avail").exists();
    (!is_there).then(|| "the kernel takes no seccomp filters".to_owned())
}

fn no_mount() -> Option<String> {
    let can = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/dev/shm"]).output();
    let can = can.is_ok_and(|output| output.status.success());
    (!can).then(|| "only root may mount another /dev/shm (unshare -m)".to_owned())
}

fn no_group() -> Option<String> {
    Group::new(1 << 30).err()
}

/// Runs two ranks for which the kernel rejects a system call. Returns the line that they report.
fn forbidden(ranks: Command, transport: &str) -> String {
    let ended = run(ranks).expect_success();
    assert_eq!(count(&ended.stdout, &format!("has begun over {transport}\n")), 2, "{ended:?}");
    let lines = our_lines(&ended);
    assert_eq!(lines.len(), 1, "{ended:?}");
    lines[0].to_owned()
}

fn forbidden_copies_are_replaced_and_reported_once() {
    let line = forbidden(ranks(2, "no copies"), "shm");
    assert!(line.contains("process_vm_readv") && line.contains("a seccomp filter is set"), "{line}");
}

fn forbidden_shared_memory_is_replaced() {
    let line = forbidden(ranks(2, "no memory"), "mpi");
    assert!(line.contains("cannot share memory (") && line.contains("Operation not permitted"), "{line}");
}

fn forbidden_shared_memory_without_mpi_is_replaced_by_tcp() {
    let mut ranks = launch::processes(2, &this_program());
    play(&mut ranks, "no memory");
    let line = forbidden(ranks, "tcp");
    assert!(
        line.contains("cannot share memory (") && line.ends_with("their messages go over the network"),
        "{line}"
    );
}

fn small_shared_memory_folder_is_reported_once() {
    let mpirun = launch::mpirun(2, &this_program());
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=64k none /dev/shm && exec \"$0\" \"$@\"";
    command.args(["-m", "sh", "-c", script]).arg(mpirun.get_program()).args(mpirun.get_args());
    command.envs(mpirun.get_envs().filter_map(|(name, value)| Some((name, value?))));
    play(&mut command, "sum");
    let ended = run(command);
    // Open MPI uses another method, and MPICH does not start. Neither of them hangs.
    assert_eq!(ended.status.success(), launch::is_open_mpi(), "{ended:?}");
    let said = our_lines(&ended).into_iter().filter(|line| line.contains("/dev/shm")).collect::<Vec<_>>();
    assert!(said.len() == 1 && said[0].contains("has 64 KiB free"), "{ended:?}");
}

fn low_limit_of_open_files_is_an_error_that_names_the_limit() {
    let ended = in_shell("ulimit -n 64", 4, "arrays");
    assert!(!ended.status.success());
    assert!(count(&ended.stdout, "this process may have 64 files open") >= 1, "{ended:?}");
    assert!(ended.stdout.contains("raise `ulimit -n`"), "{ended:?}");
    let said = our_lines(&ended).into_iter().filter(|line| line.contains("ulimit -n")).count();
    assert_eq!(said, 1, "before it fails, one rank says it: {ended:?}");
}

fn soft_limit_of_open_files_is_raised_to_the_hard_limit() {
    let ended = in_shell("ulimit -Sn 64", 2, "arrays").expect_success();
    assert!(our_lines(&ended).is_empty(), "{ended:?}");
}

fn low_limit_of_address_space_is_an_error_that_names_the_limit() {
    let ended = in_shell("ulimit -v 2500000", 2, "much");
    assert!(!ended.status.success());
    assert!(ended.stdout.contains("of address space: raise `ulimit -v`"), "{ended:?}");
}

/// A control group of this test, which is removed at the end.
struct Group(PathBuf);

impl Group {
    fn new(limit_bytes: u64) -> Result<Self, String> {
        let name = format!("unisono-launch-{}", std::process::id());
        let versions = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let make = |(root, file): (&str, &str)| {
            let group = Self(Path::new(root).join(&name));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::write(group.0.join(file), limit_bytes.to_string()).ok().map(|()| group)
        };
        let made = versions.into_iter().find_map(make);
        made.ok_or_else(|| "only root may make a control group with a limit of memory".to_owned())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn low_memory_limit_is_an_error_and_does_not_kill_ranks() {
    let group = Group::new(1 << 30).expect("it was possible before");
    let before = format!("echo $$ > {}/cgroup.procs", group.0.display());
    let ended = in_shell(&before, 2, "much");
    assert!(!ended.status.success());
    assert!(ended.stdout.contains("this container or job is limited to 1024 MiB of memory"), "{ended:?}");
}
