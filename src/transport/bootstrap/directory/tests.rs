//! Starts through a directory.

use super::*;
use crate::transport::bootstrap::Bootstrap as _;
use crate::while_waiting;

const SOON: Duration = Duration::from_millis(300);
const LATER: Duration = Duration::from_secs(60);

fn joining(rank: usize, ranks: usize, timeout: Duration) -> Joining<'static> {
    Joining { world: (rank, ranks), timeout, secret: Hidden(b""), reports: false }
}

fn join(folder: &Path, rank: usize, ranks: usize, timeout: Duration) -> Result<Rendezvous> {
    Rendezvous::in_folder(folder, joining(rank, ranks, timeout))
}

fn error(folder: &Path, rank: usize, timeout: Duration) -> String {
    join(folder, rank, 2, timeout).unwrap_err().to_string()
}

fn gather(folder: &Path, rank: usize, own: &[u8]) -> Vec<Vec<u8>> {
    join(folder, rank, 2, LATER).unwrap().all_gather(own).unwrap()
}

/// Writes the file of a rank 0.
fn publish(folder: &Path, process: Process) {
    let entry = Entry { process, secret: Hidden([7; 2]), addresses: Vec::new() };
    fs::write(folder.join(PUBLISHED), serde_json::to_vec(&entry).unwrap()).unwrap();
}

fn dead() -> Process {
    Process { started: 1, ..Process::own() }
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn all_gather_returns_all_contributions_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    // Longer than the address of a socket.
    let folder = folder.path().join("x".repeat(120));
    let rank = |rank| {
        for _world in 0..3 {
            let mut ranks = join(&folder, rank, 3, LATER).unwrap();
            for round in 0..4 {
                let all = ranks.all_gather(&vec![rank as u8; rank + round]).unwrap();
                let expected: Vec<_> = (0..3).map(|rank| vec![rank as u8; rank + round]).collect();
                assert_eq!(all, expected);
            }
        }
    };
    std::thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || rank(number));
        }
    });
    assert_eq!(files(&folder), 0);
}

#[test]
fn missing_ranks_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let alone = |rank| join(folder.path(), rank, 3, SOON).unwrap_err().to_string();
    let question = format!(
        "was each of the 3 processes started, with a RANK of its own, in the same session or with the same UNISONO_BOOTSTRAP_DIR \
         (here {})?",
        folder.path().display()
    );
    assert_eq!(alone(1), format!("rank 1 of 3 has waited 0 s for rank 0 to begin: {question}"));
    assert_eq!(alone(0), format!("rank 0 of 3 has waited 0 s for ranks 1, 2 to begin: {question}"));
    assert_eq!(files(folder.path()), 0);
}

#[test]
fn files_of_a_killed_job_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    publish(folder.path(), dead());
    fs::write(folder.path().join(REQUEST), "").unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.path().join(SOCKET)).unwrap());
    let error = error(folder.path(), 1, SOON);
    assert!(error.contains("for rank 0 to begin"), "{error}");
    let ended = format!("process {} wrote the file of rank 0 and has ended", std::process::id());
    assert!(error.ends_with(&ended), "{error}");
    // The rank that takes its place overwrites its file.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| gather(folder.path(), 1, b"x"));
        assert_eq!(gather(folder.path(), 0, b"new"), [b"new".to_vec(), b"x".to_vec()]);
        other.join().unwrap();
    });
    assert_eq!(files(folder.path()), 0);
}

#[test]
fn rank_of_another_machine_requests_an_address_and_waits_until_it_answers() {
    let folder = tempfile::tempdir().unwrap();
    let far = |timeout| {
        let joining = joining(1, 2, timeout);
        Rendezvous::reach(joining, |claim| find(folder.path(), "elsewhere", claim, timeout))
    };
    publish(folder.path(), Process { machine: "the first".to_owned(), ..dead() });
    let error = far(SOON).unwrap_err().to_string();
    assert!(error.contains("wrote the file of rank 0 and does not answer from another machine"), "{error}");
    fs::remove_file(folder.path().join(PUBLISHED)).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| gather(folder.path(), 0, b"new"));
        assert_eq!(far(LATER).unwrap().all_gather(b"x").unwrap(), [b"new".to_vec(), b"x".to_vec()]);
        other.join().unwrap();
    });
    assert_eq!(files(folder.path()), 0);
}

#[test]
fn rank_0_has_no_address_unless_it_is_requested() {
    let folder = tempfile::tempdir().unwrap();
    let (mut arrivals, mut entry) = Entry::publish(folder.path()).unwrap();
    assert!(read(folder.path()).unwrap().addresses.is_empty());
    entry.listen(folder.path(), &mut arrivals).unwrap();
    assert!(!read(folder.path()).unwrap().addresses.is_empty());
}

#[test]
fn folders_of_killed_jobs_are_removed() {
    let temporary = tempfile::tempdir().unwrap();
    let of_user = system::private_folder(temporary.path()).unwrap();
    let [killed, living, unrelated] = ["killed", "living", "unrelated"].map(|name| of_user.join(name));
    for folder in [&killed, &living, &unrelated] {
        fs::create_dir(folder).unwrap();
    }
    publish(&killed, dead());
    publish(&living, Process::own());
    Rendezvous::of_job(temporary.path(), "other", joining(0, 1, LATER)).unwrap();
    assert!(!killed.exists() && living.join(PUBLISHED).exists() && unrelated.exists());
    assert!(!of_user.join("other").exists());
}

#[test]
fn differing_world_sizes_are_refused_with_both_values() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(folder.path(), 0, 3, LATER).unwrap_err().to_string());
        let errors = [error(folder.path(), 1, LATER), other.join().unwrap()];
        let expected =
            "rank 0 is in a world of 3 ranks, but rank 1 in one of 2: WORLD_SIZE must be the same for all";
        assert_eq!(errors, [expected; 2]);
    });
}

#[test]
fn a_second_job_in_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    publish(folder.path(), Process::of(child.id()));
    let near = error(folder.path(), 0, LATER);
    assert!(
        near.starts_with(&format!("process {} is rank 0 of a world that starts in", child.id())),
        "{near}"
    );
    child.kill().and_then(|()| child.wait()).unwrap();
    publish(folder.path(), Process { machine: "elsewhere".to_owned(), ..dead() });
    let far = error(folder.path(), 0, LATER);
    assert!(far.ends_with("if it was killed on another machine, remove the files there"), "{far}");
    assert!(folder.path().join(PUBLISHED).exists());
}

#[test]
fn a_second_rank_with_the_same_number_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let join = |rank| join(folder.path(), rank, 3, LATER).and_then(|mut ranks| ranks.all_gather(b""));
        let all = [0, 1, 1].map(|rank| scope.spawn(move || join(rank).unwrap_err().to_string()));
        for error in all.map(|rank| rank.join().unwrap()) {
            assert!(error.starts_with("there are two ranks 1: "), "{error}");
        }
    });
}

#[test]
fn rank_that_leaves_during_the_start_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| gather(folder.path(), 1, b"x"));
        let mut first = join(folder.path(), 0, 2, LATER).unwrap();
        first.all_gather(b"x").unwrap();
        let error = first.all_gather(b"x").unwrap_err();
        assert_eq!(error.failed_rank(), Some(1), "{error}");
    });
}

#[test]
fn folder_that_is_removed_is_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("job");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| gather(&own, 1, b"x"));
        while fs::remove_dir(&own).is_err() {}
        gather(&own, 0, b"x");
        other.join().unwrap();
    });
}

#[test]
fn callback_of_the_program_ends_the_wait() {
    let folder = tempfile::tempdir().unwrap();
    for rank in [0, 1] {
        let interrupted = while_waiting::while_waiting(
            || Err("interrupted".to_owned()),
            || error(folder.path(), rank, LATER),
        );
        assert!(interrupted.contains("interrupted"), "{interrupted}");
        assert_eq!(files(folder.path()), 0);
    }
}
