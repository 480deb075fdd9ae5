//! Detects leftovers of a job: processes of this program, and files in shared memory.

use std::time::{Duration, Instant};

/// Prefixes of files that MPIs leave there when a rank is killed.
const OF_MPI: [&str; 5] = ["vader_segment.", "sm_segment.", "mpich_shm_", "mpich_shar_tmp", "ucx_shm_"];
/// The longest time for which the last rank and its files may outlive the launcher.
const MOMENT: Duration = Duration::from_secs(4);

/// Returns the files in shared memory, except those of MPIs.
pub fn shared_files() -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| !OF_MPI.iter().any(|of_mpi| name.starts_with(of_mpi))).collect()
}

/// Returns whether a process uses this file in shared memory. It then belongs to a job of a concurrent test.
fn is_in_use(name: &str) -> bool {
    let path = format!("/dev/shm/{name}");
    let is_open = |link: std::fs::DirEntry| {
        std::fs::read_link(link.path()).is_ok_and(|file| file.to_string_lossy().starts_with(&path))
    };
    std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|process| process.path()).any(|process| {
        std::fs::read_to_string(process.join("maps")).is_ok_and(|maps| maps.contains(&path))
            || std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten().any(is_open)
    })
}

/// # Panics
/// If one of these processes, one per rank, still runs this program, or if there are new files that no process uses.
pub fn nothing<'a>(processes: impl Iterator<Item = &'a str>, ranks: usize, files_before: &[String]) {
    let processes: Vec<_> = processes.collect();
    assert_eq!(processes.len(), ranks, "{processes:?}");
    let program = std::env::current_exe().expect("a program knows its path");
    let runs =
        |process: &str| std::fs::read_link(format!("/proc/{process}/exe")).is_ok_and(|path| path == program);
    let started = Instant::now();
    loop {
        let alive = processes.iter().find(|process| runs(process));
        let left: Vec<_> = shared_files()
            .into_iter()
            .filter(|name| !files_before.contains(name) && !is_in_use(name))
            // Its job may have removed it meanwhile.
            .filter(|name| std::path::Path::new("/dev/shm").join(name).exists())
            .collect();
        if alive.is_none() && left.is_empty() {
            return;
        }
        assert!(started.elapsed() < MOMENT, "left behind: processes {alive:?}, files {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
