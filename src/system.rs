//! What the system allows this process: how many open files, how much memory, a look into other processes.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

mod memory;
mod process;

pub use memory::AvailableMemory;
pub(crate) use memory::MemoryLimit;
pub(crate) use process::{FAILED, Process, machine, private_folder, say};

/// Where the MPIs keep their own messages between the ranks of a node.
pub(crate) const SHARED_FOLDER: &str = "/dev/shm";
/// What they keep there for each of those ranks: Open MPI 4 asks for 4 MiB, MPICH's UCX for a little more.
pub(crate) const SHARED_FOR_A_RANK_BYTES: u64 = 5 << 20;
/// What an MPI opens by itself, and the program.
const FILES_OF_ONE: u64 = 96;
/// What an MPI opens for each other rank of the world, at most.
const FILES_FOR_A_RANK: u64 = 2;
/// More than these are never asked for: some programs go through all numbers that a file may have.
const ENOUGH_FILES: u64 = 65_536;

/// How many files this process may have open; `None` if there is no limit.
pub(crate) fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// How many files a rank of such a world may come to need, before its program registers any memory.
pub(crate) fn least_open_files(ranks: usize) -> u64 {
    FILES_OF_ONE + FILES_FOR_A_RANK * ranks as u64
}

/// Lets this process have as many open files as it may allow itself: each registered array is one.
pub(crate) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(ENOUGH_FILES, |most| most.min(ENOUGH_FILES));
    if limit.current.is_some_and(|current| current < most) {
        limit.current = Some(most);
        // What cannot be raised stays, and is spoken of where it is too little.
        let _ = rustix::process::setrlimit(Resource::Nofile, limit);
    }
}

/// How much room a folder has, if it is there.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    rustix::fs::statvfs(folder).ok().map(|room| room.f_bavail * room.f_frsize)
}

/// The name of this machine.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What to do about memory that could not be had, as the end of a sentence.
pub(crate) fn advice(cause: &io::Error) -> String {
    let limits = || {
        if let Some(most) = getrlimit(Resource::As).current {
            return format!("a process may have {} of addresses: raise `ulimit -v`", text(most));
        }
        match MemoryLimit::of_this_process() {
            Some(limit) => format!("{limit}: ask for more, or start fewer ranks on a node"),
            None => "the machine has not so much: use less, or start fewer ranks on a node".to_owned(),
        }
    };
    let advice = match cause.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => {
            let most = open_files().map_or_else(|| "no more".to_owned(), |most| most.to_string());
            format!(
                "this process may have {most} files open, and each registered array is one: raise `ulimit -n` (containers: \
                 --ulimit nofile=N), or register fewer, larger arrays"
            )
        }
        Some(Errno::NFILE) => "the whole machine has too many files open: raise fs.file-max".to_owned(),
        Some(Errno::NOMEM) => limits(),
        _ => return String::new(),
    };
    format!("; {advice}")
}

/// Why the kernel copies nothing between processes, as far as it can be known.
pub(crate) fn why_no_copies() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    why(&read("/proc/sys/kernel/yama/ptrace_scope"), &read("/proc/self/status"))
}

fn why(ptrace_scope: &str, status: &str) -> String {
    let is_filtered = status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]));
    match ptrace_scope.trim() {
        scope @ ("2" | "3") => format!("kernel.yama.ptrace_scope is {scope}, and should be 0 or 1"),
        _ if is_filtered => {
            "a seccomp filter is set, as containers do: docker --cap-add SYS_PTRACE, or another --security-opt \
             seccomp"
                .to_owned()
        }
        _ => "the ranks may be of different users, containers or user namespaces".to_owned(),
    }
}

/// About so many bytes, for a person.
pub fn text(bytes: u64) -> String {
    match bytes {
        0..0x40_0000 => format!("{} KiB", bytes >> 10),
        0x40_0000..0x1_0000_0000 => format!("{} MiB", bytes >> 20),
        0x1_0000_0000..0x400_0000_0000 => format!("{} GiB", bytes >> 30),
        _ => format!("{} TiB", bytes >> 40),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_forbidden_copies_is_named() {
        let (free, filtered) = ("Name:\tx\nSeccomp:\t0\n", "Seccomp:\t2\nSeccomp_filters:\t1\n");
        assert!(why("3\n", free).contains("ptrace_scope is 3"));
        assert!(why("1\n", filtered).contains("seccomp filter is set"));
        assert!(why("", free).contains("different users"));
    }

    #[test]
    fn advice_names_the_limit() {
        let advice = |errno: Errno| super::advice(&errno.into());
        assert!(advice(Errno::MFILE).contains("ulimit -n"));
        assert!(advice(Errno::NOMEM).contains("ranks on a node"));
        assert_eq!(advice(Errno::PERM), "");
    }
}
