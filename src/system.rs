//! Clocks, and system limits of this process with remedies: open files, memory, access to other processes.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::size;

mod memory;
mod network;
mod process;

pub use memory::{AvailableMemory, MemoryLimit};
#[cfg(any(feature = "mpi", feature = "ucx"))]
pub(crate) use network::has_rdma;
pub(crate) use network::{accept, interfaces, listen, listen_at, nonce, sort_by_nearness};
#[cfg(feature = "mpi")]
pub(crate) use process::boot;
pub(crate) use process::{
    FAILED, Process, is_stopped, machine, print_line, print_once, private_folder, private_path, replace_file,
};

/// The folder in which MPIs keep the messages between ranks of a node.
pub const SHARED_FOLDER: &str = "/dev/shm";
/// The space that MPIs need there per rank: Open MPI 4 requests 4 MiB, MPICH's UCX a little more.
pub const SHARED_FOR_A_RANK_BYTES: u64 = 5 << 20;
/// The number of files that an MPI and the program open, apart from those for other ranks.
const FILES_OF_ONE: u64 = 96;
/// The largest number of files for each other rank of the world: connections for collectives, messages and control, or those of an MPI.
const FILES_FOR_A_RANK: u64 = 3;
/// The largest limit to request: some programs loop over all possible file descriptors.
const ENOUGH_FILES: u64 = 65_536;

/// Returns the monotonic clock in nanoseconds, which is the same for all processes of a node.
#[inline]
pub(crate) fn now_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

/// Returns the processor time of this thread in nanoseconds.
#[cfg(feature = "tuning")]
pub(crate) fn thread_time_ns() -> u64 {
    read_ns(ClockId::ThreadCPUTime)
}

#[inline]
fn read_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the number of GPUs that NVIDIA's driver reports on this node.
pub fn gpus() -> usize {
    std::fs::read_dir("/proc/driver/nvidia/gpus").map_or(0, Iterator::count)
}

/// Returns the limit of open files of this process; `None` if there is none.
pub fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns the number of files that a rank of a world of this size may open, before its program registers any memory.
pub fn least_open_files(ranks: usize) -> u64 {
    FILES_OF_ONE + FILES_FOR_A_RANK * ranks as u64
}

/// Raises this process's limit of open files as far as permitted, since each registered array is an open file.
pub(crate) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(ENOUGH_FILES, |most| most.min(ENOUGH_FILES));
    if limit.current.is_some_and(|current| current < most) {
        limit.current = Some(most);
        // If raising fails, the limit stays, and is reported if it is too low.
        let _ = rustix::process::setrlimit(Resource::Nofile, limit);
    }
}

/// Returns the free space of a folder's file system, if the folder exists.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    rustix::fs::statvfs(folder).ok().map(|room| room.f_bavail * room.f_frsize)
}

/// Returns the name of this machine.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the remedy for a failed allocation, as the end of a sentence.
pub(crate) fn advice(cause: &io::Error) -> String {
    let advice = match cause.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => {
            let most = open_files().map_or_else(|| "no more".to_owned(), |most| most.to_string());
            format!(
                "this process may have {most} files open, and each registered array is one: raise `ulimit -n` (containers: \
                 --ulimit nofile=N), or register fewer, larger arrays"
            )
        }
        Some(Errno::FBIG) => {
            "a process is limited to smaller files, which its shared memory is too: raise `ulimit -f`"
                .to_owned()
        }
        Some(Errno::NFILE) => "the whole machine has too many files open: raise fs.file-max".to_owned(),
        Some(Errno::NOMEM) => match (getrlimit(Resource::As).current, MemoryLimit::of_this_process()) {
            (Some(most), _) => {
                let most = size::approximate(most);
                format!("a process is limited to {most} of address space: raise `ulimit -v`")
            }
            (_, Some(limit)) => format!("{limit}: request more, or start fewer ranks on a node"),
            _ => "the machine does not have that much: use less, or start fewer ranks on a node".to_owned(),
        },
        _ => return String::new(),
    };
    format!("; {advice}")
}

/// Returns the likely reason why the kernel does not copy between processes.
pub(crate) fn why_no_copies() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    why(&read("/proc/sys/kernel/yama/ptrace_scope"), &read("/proc/self/status"))
}

fn why(ptrace_scope: &str, status: &str) -> String {
    let is_filtered = status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]));
    match ptrace_scope.trim() {
        scope @ ("2" | "3") => format!("kernel.yama.ptrace_scope is {scope}, but should be 0 or 1"),
        _ if is_filtered => {
            "a seccomp filter is set, as in containers: docker --cap-add SYS_PTRACE, or another --security-opt \
             seccomp"
                .to_owned()
        }
        _ => "the ranks may belong to different users, containers or user namespaces".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_of_forbidden_copies_is_named() {
        let (free, filtered) = ("Name:\tx\nSeccomp:\t0\n", "Seccomp:\t2\nSeccomp_filters:\t1\n");
        assert!(why("3\n", free).contains("ptrace_scope is 3"));
        assert!(why("1\n", filtered).contains("seccomp filter is set"));
        assert!(why("", free).contains("different users"));
    }

    #[test]
    fn advice_names_the_limit() {
        let advice = |errno: Errno| super::advice(&errno.into());
        assert!(advice(Errno::MFILE).contains("ulimit -n"));
        assert!(advice(Errno::FBIG).contains("ulimit -f"));
        assert!(advice(Errno::NOMEM).contains("ranks on a node"));
        assert_eq!(advice(Errno::PERM), "");
    }
}
