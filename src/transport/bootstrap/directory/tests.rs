//! Starts through a directory.

use super::*;
use crate::while_waiting;

const SOON: Duration = Duration::from_millis(300);
const LATER: Duration = Duration::from_secs(60);

fn join(folder: &Path, rank: Rank, ranks: usize, timeout: Duration) -> Directory {
    Directory::new(folder.to_owned(), (rank, ranks), timeout).unwrap()
}

#[test]
fn all_gather_returns_all_contributions_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let rank = |rank| {
        let mut directory = join(folder.path(), rank, 3, LATER);
        for round in 0..4 {
            let all = directory.all_gather(&vec![rank as u8; rank + round]).unwrap();
            let expected: Vec<_> = (0..3).map(|rank| vec![rank as u8; rank + round]).collect();
            assert_eq!(all, expected);
        }
    };
    std::thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || rank(number));
        }
    });
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn missing_ranks_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = join(folder.path(), 1, 3, SOON).all_gather(b"x").unwrap_err().to_string();
    assert!(error.starts_with("rank 1 of 3 has waited 0 s for ranks 0, 2 to begin"), "{error}");
}

#[test]
fn files_of_a_killed_job_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let dead = Process { started: 1, ..Process::own() };
    let Process { id, started, machine } = &dead;
    fs::write(folder.path().join("round-0.rank-0"), format!("{id} {started} {machine} 2\nold")).unwrap();
    let error = join(folder.path(), 1, 2, SOON).all_gather(b"x").unwrap_err().to_string();
    assert!(error.contains("for rank 0 to begin"), "{error}");
    let ended = format!("process {id} wrote the file of rank 0 and has ended");
    assert!(error.ends_with(&ended), "{error}");
    // The rank that takes its place overwrites its file.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(folder.path(), 0, 2, LATER).all_gather(b"new").unwrap());
        let mut directory = join(folder.path(), 1, 2, LATER);
        assert_eq!(directory.all_gather(b"x").unwrap(), [b"new".to_vec(), b"x".to_vec()]);
        // The other rank stays until this one has read its contribution.
        drop(directory);
        other.join().unwrap();
    });
}

#[test]
fn file_of_another_machine_counts_once_its_rank_answers() {
    let folder = tempfile::tempdir().unwrap();
    let Process { id, started, .. } = Process::own();
    let left = format!("{id} {started} elsewhere 2 7\nold");
    fs::write(folder.path().join("round-0.rank-0"), left).unwrap();
    let error = join(folder.path(), 1, 2, SOON).all_gather(b"x").unwrap_err().to_string();
    assert!(error.contains("wrote the file of rank 0 and does not answer from another machine"), "{error}");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut other = join(folder.path(), 0, 2, LATER);
            other.process.machine = "elsewhere".to_owned();
            other.all_gather(b"new").unwrap()
        });
        let mut directory = join(folder.path(), 1, 2, LATER);
        assert_eq!(directory.all_gather(b"x").unwrap(), [b"new".to_vec(), b"x".to_vec()]);
        drop(directory);
        other.join().unwrap();
    });
}

#[test]
fn folders_of_killed_jobs_are_removed() {
    let temporary = tempfile::tempdir().unwrap();
    let join = |job| Directory::of_job(temporary.path(), job, (0, 1), LATER).unwrap();
    let (killed, living) = (join("killed"), join("living"));
    living.write(b"x").unwrap();
    let Process { id, machine, .. } = Process::own();
    fs::write(killed.folder.join("round-0.rank-0"), format!("{id} 1 {machine} 1\nold")).unwrap();
    drop(join("other"));
    assert!(!killed.folder.exists() && living.file(0, 0).exists());
}

#[test]
fn differing_world_sizes_are_refused_with_both_values() {
    let folder = tempfile::tempdir().unwrap();
    let own = Process::own();
    let entry = format!("{} {} {} 3\nx", own.id, own.started, own.machine);
    fs::write(folder.path().join("round-0.rank-0"), entry).unwrap();
    // Rank 1 need not wait until rank 0 has read the reason.
    fs::write(folder.path().join("end.rank-0"), "").unwrap();
    let error = join(folder.path(), 1, 2, LATER).all_gather(b"x").unwrap_err().to_string();
    assert!(error.starts_with("rank 1 is in a world of 2 ranks, but rank 0 in one of 3"), "{error}");
}

#[test]
fn a_second_job_in_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let Process { id, started, machine } = Process::of(child.id());
    let entry = format!("{id} {started} {machine} 2\nx");
    fs::write(folder.path().join("round-0.rank-1"), entry).unwrap();
    let error = join(folder.path(), 1, 2, LATER).all_gather(b"x").unwrap_err().to_string();
    child.kill().and_then(|()| child.wait()).unwrap();
    assert!(error.contains(&format!("process {id} is rank 1")), "{error}");
}

#[test]
fn rank_that_leaves_during_the_start_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| join(folder.path(), 1, 2, LATER).all_gather(b"x").unwrap());
        let mut directory = join(folder.path(), 0, 2, LATER);
        directory.all_gather(b"x").unwrap();
        let error = directory.all_gather(b"x").unwrap_err().to_string();
        assert!(error.starts_with("rank 1 (process "), "{error}");
    });
}

#[test]
fn folder_removed_before_the_first_round_is_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("job");
    let mut directory = join(&own, 0, 1, LATER);
    fs::remove_dir(&own).unwrap();
    assert_eq!(directory.all_gather(b"x").unwrap(), [b"x".to_vec()]);
}

#[test]
fn callback_of_the_program_ends_the_wait() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = join(folder.path(), 1, 2, LATER);
    let gather = || directory.all_gather(b"x");
    let error = while_waiting::while_waiting(|| Err("interrupted".to_owned()), gather).unwrap_err();
    assert!(error.to_string().contains("interrupted"), "{error}");
}
