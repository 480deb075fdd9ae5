//! Detects what a job left behind: processes of this program, and files in shared memory.

use std::time::{Duration, Instant};

/// Files that the MPIs themselves leave there when a rank is killed.
const OF_MPI: [&str; 4] = ["vader_segment.", "sm_segment.", "mpich_shm_", "mpich_shar_tmp"];
/// How long the last rank may outlive the launcher.
const MOMENT: Duration = Duration::from_secs(4);

/// The files in shared memory, except for the MPI's own.
pub fn shared_files() -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| !OF_MPI.iter().any(|of_mpi| name.starts_with(of_mpi))).collect()
}

/// # Panics
/// If one of these processes, one per rank, still runs this program, or there are files that were not there before.
pub fn nothing<'a>(processes: impl Iterator<Item = &'a str>, ranks: usize, files_before: &[String]) {
    let processes: Vec<_> = processes.collect();
    assert_eq!(processes.len(), ranks, "{processes:?}");
    let program = std::env::current_exe().expect("a program knows its path");
    let started = Instant::now();
    for process in processes {
        let runs = || std::fs::read_link(format!("/proc/{process}/exe")).is_ok_and(|path| path == program);
        while runs() {
            assert!(started.elapsed() < MOMENT, "process {process} lives");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let left: Vec<_> = shared_files().into_iter().filter(|name| !files_before.contains(name)).collect();
    assert!(left.is_empty(), "{left:?}");
}
