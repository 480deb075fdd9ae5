//! Limits of the system that are too small, and what it forbids.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;

use super::{ROLE, always, count, launch, our_lines, own_path, ranks, run, trial};
use unisono_testing::launch::Ended;

/// A small job in a shell that has changed something first.
fn in_shell(before: &str, count: usize, role: &str) -> Ended {
    let mpirun = launch::mpirun(count, &own_path());
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{before} && exec \"$0\" \"$@\"")).arg(mpirun.get_program());
    command.args(mpirun.get_args()).env(ROLE, role);
    command.envs(mpirun.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run(command)
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("copies that the kernel forbids are not needed, and their cause is said once", no_copies),
        trial("memory that the kernel does not let ranks share is not needed", no_shared_memory),
        trial("a tiny /dev/shm is said once", tiny_shared_folder),
        always("too few open files are an error that names the limit", too_few_files),
        always("the limit of open files is raised as far as it may be", raised_files),
        always("too few addresses are an error that names the limit", too_few_addresses),
        trial("a memory limit that is too small is an error that names it, and no kill", small_memory),
    ]
}

/// Two ranks to whom the kernel refuses a call; the line that they say.
fn forbidden(role: &str, transport: &str) -> Result<String, String> {
    let ended = run(ranks(2, role));
    if ended.stdout.contains("no filters: ") {
        return Err("the kernel takes no seccomp filters".to_owned());
    }
    let ended = ended.expect_success();
    assert_eq!(count(&ended.stdout, &format!("has begun over {transport}\n")), 2, "{ended:?}");
    let lines = our_lines(&ended);
    assert_eq!(lines.len(), 1, "{ended:?}");
    Ok(lines[0].to_owned())
}

fn no_copies() -> Result<(), String> {
    let line = forbidden("no copies", "shm")?;
    assert!(line.contains("process_vm_readv") && line.contains("a seccomp filter is set"), "{line}");
    Ok(())
}

fn no_shared_memory() -> Result<(), String> {
    let line = forbidden("no memory", "mpi")?;
    assert!(line.contains("cannot share memory (") && line.contains("Operation not permitted"), "{line}");
    Ok(())
}

fn tiny_shared_folder() -> Result<(), String> {
    let can = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/dev/shm"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return Err("only root may mount another /dev/shm (unshare -m)".to_owned());
    }
    let mpirun = launch::mpirun(2, &own_path());
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=64k none /dev/shm && exec \"$0\" \"$@\"";
    command.args(["-m", "sh", "-c", script]).arg(mpirun.get_program()).args(mpirun.get_args());
    command.envs(mpirun.get_envs().filter_map(|(name, value)| Some((name, value?)))).env(ROLE, "sum");
    let ended = run(command);
    // Open MPI goes another way, MPICH does not begin; neither waits.
    assert_eq!(ended.status.success(), launch::is_open_mpi(), "{ended:?}");
    let said = our_lines(&ended).into_iter().filter(|line| line.contains("/dev/shm")).collect::<Vec<_>>();
    assert!(said.len() == 1 && said[0].contains("has 64 KiB free"), "{ended:?}");
    Ok(())
}

fn too_few_files() {
    let ended = in_shell("ulimit -n 64", 4, "arrays");
    assert!(!ended.status.success());
    assert!(count(&ended.stdout, "this process may have 64 files open") >= 1, "{ended:?}");
    assert!(ended.stdout.contains("raise `ulimit -n`"), "{ended:?}");
    let said = our_lines(&ended).into_iter().filter(|line| line.contains("ulimit -n")).count();
    assert_eq!(said, 1, "before it fails, one rank says it: {ended:?}");
}

fn raised_files() {
    let ended = in_shell("ulimit -Sn 64", 2, "arrays").expect_success();
    assert!(our_lines(&ended).is_empty(), "{ended:?}");
}

fn too_few_addresses() {
    let ended = in_shell("ulimit -v 2500000", 2, "much");
    assert!(!ended.status.success());
    assert!(ended.stdout.contains("of address space: raise `ulimit -v`"), "{ended:?}");
}

/// A control group of ours that is removed at the end.
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

fn small_memory() -> Result<(), String> {
    let group = Group::new(1 << 30)?;
    let before = format!("echo $$ > {}/cgroup.procs", group.0.display());
    let ended = in_shell(&before, 2, "much");
    assert!(!ended.status.success());
    assert!(ended.stdout.contains("this container or job is limited to 1024 MiB of memory"), "{ended:?}");
    Ok(())
}
