//! Flight recorder files: one JSON file for each rank.

use std::fs::DirBuilder;
use std::io::{Error, Result};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

use super::board::{FirstFailure, StatusBoard};
use crate::config::flight_dirs;
use crate::record::{Doing, Record};
use crate::system::{host, print_line, private_folder, replace_file};

/// A bound on the number of ranks in a file, to reject damaged ones.
const MOST_RANKS: usize = 1 << 20;

/// The calls of a rank up to some moment: `rank-3.json` in the flight recorder folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dump {
    /// The rank.
    pub rank: Rank,
    /// The number of ranks in the world.
    pub ranks: usize,
    /// The reason for this file.
    pub why: String,
    /// When it was written, in seconds since 1970.
    pub at_unix_s: f64,
    /// The rank that failed first, as recorded on this rank's node.
    pub failed: Option<Failed>,
    /// The activity of the rank at that moment.
    pub doing: Doing,
    /// Its last calls, oldest first.
    pub records: Vec<Record>,
}

/// A rank that has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The rank.
    pub rank: Rank,
    /// The cause that it reported.
    pub cause: String,
}

impl Dump {
    /// The state and the calls of the rank at a position of a status board.
    pub(crate) fn of(status: &StatusBoard, position: usize, why: &str) -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            rank: status.members()[position],
            ranks: status.ranks(),
            why: why.to_owned(),
            at_unix_s: since_1970.as_secs_f64(),
            failed: status.failure().map(|FirstFailure { by: rank, cause, .. }| Failed { rank, cause }),
            doing: status.doing(position),
            records: status.records(position),
        }
    }

    /// Parses a file. It does not panic for any input.
    ///
    /// # Errors
    /// A description of the defect of the file.
    pub fn from_json(bytes: &[u8]) -> std::result::Result<Self, String> {
        let dump: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let Self { rank, ranks, .. } = dump;
        if ranks > MOST_RANKS || rank >= ranks {
            return Err(format!("there is no rank {rank} in a world of {ranks}"));
        }
        if dump.doing.rank != rank {
            return Err(format!("it is of rank {rank}, but has the activity of rank {}", dump.doing.rank));
        }
        Ok(dump)
    }

    pub(super) fn file_name(rank: Rank) -> String {
        format!("rank-{rank}.json")
    }

    /// Writes it into a folder, which is created if necessary. It replaces an earlier dump of the rank atomically. Only the
    /// owner can read it: labels and causes may be confidential.
    fn write(&self, folder: &Path) -> Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let text = serde_json::to_vec(self).map_err(Error::other)?;
        replace_file(&folder.join(Self::file_name(self.rank)), &text, 0o600)
    }
}

/// The number of jobs whose flight recorders are kept in the default place.
const KEPT_JOBS: usize = 8;

/// Prepares the default place before the first dump of a job. Refuses a folder that others can read, and removes the dumps of all
/// but the latest jobs of this user.
fn make_room(folder: &Path, temporary: &Path) -> Result<()> {
    let of_jobs = flight_dirs(temporary);
    let Ok(within) = folder.strip_prefix(&of_jobs) else { return Ok(()) };
    private_folder(temporary)?;
    if within.iter().next().is_some_and(|own| of_jobs.join(own).exists()) {
        return Ok(());
    }
    let jobs = std::fs::read_dir(&of_jobs).into_iter().flatten().flatten();
    let mut jobs: Vec<_> =
        jobs.filter_map(|job| Some((job.metadata().ok()?.modified().ok()?, job.path()))).collect();
    jobs.sort();
    // Other processes may remove the same folders.
    let surplus = (jobs.len() + 1).saturating_sub(KEPT_JOBS);
    jobs[..surplus].iter().for_each(|(_, job)| drop(std::fs::remove_dir_all(job)));
    Ok(())
}

/// Writes the dump of the rank at a position of a status board. Any process may call it.
pub(crate) fn dump(status: &StatusBoard, position: usize, why: &str) -> Result<()> {
    let folder = status.flight_dir();
    let room = make_room(&folder, &std::env::temp_dir());
    room.and_then(|()| Dump::of(status, position, why).write(&folder)).map_err(|error| {
        let rank = status.members()[position];
        Error::other(format!(
            "the flight recorder of rank {rank} cannot be written to {}: {error}",
            folder.display()
        ))
    })
}

/// Writes the dump of this rank after it failed. The first rank that fails also writes the dumps of the other ranks of its status
/// board, since these may be unable to, and prints the folder.
pub(crate) fn dump_failed(status: &StatusBoard, why: &str) {
    let is_first = status.failure().is_some_and(|failure| failure.by == status.rank());
    let own = dump(status, status.position(), why);
    if is_first {
        let others = (0..status.members().len()).filter(|&position| position != status.position());
        let why = format!("rank {} failed: {why}", status.rank());
        tell(status, others.fold(own, |all, position| all.and(dump(status, position, &why))));
    }
}

/// Writes the dumps of all ranks of a status board, and prints the folder.
pub(crate) fn dump_all(status: &StatusBoard, why: &str) {
    let all = (1..status.members().len()).map(|position| dump(status, position, why));
    tell(status, all.fold(dump(status, 0, why), Result::and));
}

/// Prints the folder of the dumps.
fn tell(status: &StatusBoard, all: Result<()>) {
    if let Err(error) = all {
        return print_line(&error.to_string());
    }
    let (folder, host) = (status.flight_dir(), host());
    let folder = folder.display();
    print_line(&format!(
        "the flight recorders are in {folder} on {host}; `unisono hang-report {folder}` explains the failure"
    ));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::call::Call;
    use crate::codes::Codes;
    use crate::dtype::DType;
    use crate::kernels::ReduceOp;
    use crate::method::Method;
    use crate::record::{Stage, State};

    /// Two ranks, the first of which is in a call that the other has not made.
    fn statuses(folder: &Path) -> Vec<StatusBoard> {
        let statuses = StatusBoard::of_threads(2).unwrap();
        statuses[0].set_flight_dir(folder.to_owned());
        let call = Call::all_reduce(DType::BF16, ReduceOp::Mean, 10);
        let method = Method::Algorithm(unisono_collectives::Algorithm::Ring);
        let begin = |status: &StatusBoard, sequence| {
            let codes = Codes::new(&call, method);
            let _ = status.begin(sequence, 10, codes, status.intern("bucket 2"), call.size_bytes());
        };
        statuses.iter().for_each(|status| {
            begin(status, 0);
            status.end(true, call.size_bytes());
        });
        begin(&statuses[0], 1);
        statuses[0].at_step(1, 5);
        statuses
    }

    #[test]
    fn dump_of_any_rank_of_a_status_board_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        let statuses = statuses(&folder);
        statuses[0].fail(1, 1, "it panicked");
        dump(&statuses[1], 0, "requested").unwrap();
        let read = Dump::from_json(&std::fs::read(folder.join("rank-0.json")).unwrap()).unwrap();
        assert_eq!((read.rank, read.ranks, read.why.as_str()), (0, 2, "requested"));
        assert_eq!(read.failed, Some(Failed { rank: 1, cause: "it panicked".to_owned() }));
        assert_eq!((read.doing.state, read.doing.process_id), (State::Inside, std::process::id()));
        let [done, running] = &read.records[..] else { panic!("{:?}", read.records) };
        assert_eq!((done.sequence, done.stage, done.phase, done.step), (0, Stage::Done, 0, 0));
        assert_eq!((running.sequence, running.stage, running.phase, running.step), (1, Stage::Running, 1, 5));
        assert_eq!(running.to_string(), "all-reduce #1 \"bucket 2\" of 10 bf16, mean, by ring");
        let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
        assert_eq!(left.len(), 1, "no part is left: {left:?}");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("rank-0.json"))), (0o700, 0o600));
    }

    #[test]
    fn first_failed_rank_dumps_all_and_the_others_only_themselves() {
        let folder = tempfile::tempdir().unwrap();
        let statuses = statuses(folder.path());
        let file = |rank| folder.path().join(Dump::file_name(rank));
        statuses[0].fail(0, 0, "it is late");
        dump_failed(&statuses[1], "because of rank 0");
        assert!(file(1).exists() && !file(0).exists());
        dump_failed(&statuses[0], "it is late");
        let why = |rank| Dump::from_json(&std::fs::read(file(rank)).unwrap()).unwrap().why;
        assert_eq!((why(0).as_str(), why(1).as_str()), ("it is late", "rank 0 failed: it is late"));
    }

    #[test]
    fn default_folder_keeps_the_dumps_of_the_latest_jobs() {
        let temporary = tempfile::tempdir().unwrap();
        let of_jobs = flight_dirs(temporary.path());
        for job in 0..KEPT_JOBS + 3 {
            let folder = of_jobs.join(job.to_string());
            // Twice, as by two ranks.
            for rank in 0..2 {
                make_room(&folder, temporary.path()).unwrap();
                Dump::of(&statuses(&folder)[rank], rank, "requested").write(&folder).unwrap();
            }
            let second = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(job as u64);
            std::fs::File::open(&folder).unwrap().set_modified(second).unwrap();
        }
        let kept =
            std::fs::read_dir(&of_jobs).unwrap().map(|job| job.unwrap().file_name().into_string().unwrap());
        let mut kept: Vec<usize> = kept.map(|job| job.parse().unwrap()).collect();
        kept.sort_unstable();
        assert_eq!(kept, (3..KEPT_JOBS + 3).collect::<Vec<_>>());
        // Other users must not be able to read it.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(of_jobs.parent().unwrap(), open).unwrap();
        assert!(make_room(&of_jobs.join("one more"), temporary.path()).is_err());
        // A folder that the user names is left as it is.
        let named = temporary.path().join("named");
        make_room(&named, temporary.path()).unwrap();
    }

    #[test]
    fn uncreatable_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "in the way").unwrap();
        let error = dump(&statuses(&file)[0], 0, "requested").unwrap_err().to_string();
        assert!(error.contains("rank 0") && error.contains(file.to_str().unwrap()), "{error}");
    }

    #[test]
    fn invalid_dump_is_rejected() {
        let good = serde_json::to_value(Dump::of(&statuses(Path::new("/"))[1], 1, "requested")).unwrap();
        let refused = |key: &str, value: serde_json::Value| {
            let mut bad = good.clone();
            bad[key] = value;
            Dump::from_json(bad.to_string().as_bytes()).unwrap_err()
        };
        assert!(Dump::from_json(good.to_string().as_bytes()).is_ok());
        assert!(refused("rank", 2.into()).contains("no rank 2 in a world of 2"));
        assert!(refused("rank", 0.into()).contains("the activity of rank 1"));
        assert!(refused("ranks", u64::MAX.into()).contains("no rank"));
        let text = good.to_string();
        let cut_at = (0..text.len()).step_by(7);
        assert!(cut_at.clone().count() > 50);
        assert!(cut_at.into_iter().all(|end| Dump::from_json(&text.as_bytes()[..end]).is_err()));
    }
}
