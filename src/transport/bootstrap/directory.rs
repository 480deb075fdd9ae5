//! A bootstrap through files in a directory that all ranks can access.
//!
//! For each all-gather, each rank writes a file and reads those of the others. When all ranks are done, rank 0 removes the remaining
//! files. Files of processes that have ended are ignored, since a killed job does not remove its files.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::Bootstrap;
use crate::error::{Error, Result};
use crate::record::named;
use crate::system::{self, Process, print_line, replace_file};

/// The initial and the longest sleep between polls.
const NAPS: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(5)];
/// The time after which a rank reports that it waits for others.
const WARN_AFTER: Duration = Duration::from_secs(30);
/// The interval of checks whether the processes found so far are alive.
const ALIVE_EVERY: Duration = Duration::from_millis(100);
/// The time that rank 0 waits for the others to finish, and they for it. The next job removes files that remain then.
const TO_END: Duration = Duration::from_secs(10);

/// A rank's handle to a bootstrap through a directory.
#[derive(Debug)]
pub(crate) struct Directory {
    folder: PathBuf,
    /// Whether the folder was created for this world, and is removed with it.
    is_own: bool,
    rank: Rank,
    ranks: usize,
    timeout: Duration,
    process: Process,
    round: u64,
    /// The process of each rank, once found.
    others: Vec<Option<Process>>,
}

struct Entry {
    process: Process,
    ranks: usize,
    content: Vec<u8>,
}

impl Directory {
    /// Finds the other ranks in a folder, which is created if necessary. All ranks of a world use the same folder, and no other
    /// world at the same time. A rank waits `timeout` for each missing rank.
    ///
    /// # Errors
    /// [`Error::Launch`] if the folder is not usable.
    pub(crate) fn new(folder: PathBuf, (rank, ranks): (Rank, usize), timeout: Duration) -> Result<Self> {
        fs::create_dir_all(&folder).map_err(|error| cannot_use(&folder, &error))?;
        let (process, others) = (Process::own(), vec![None; ranks]);
        let directory = Self { folder, is_own: false, rank, ranks, timeout, process, round: 0, others };
        // A world of this process that failed to start may have left the file.
        let _ = fs::remove_file(directory.end(rank));
        Ok(directory)
    }

    /// Finds the ranks of a job of this user, in a private folder of that name.
    ///
    /// # Errors
    /// [`Error::Launch`] if the folder is not usable, or may be readable by others.
    pub(crate) fn of_job(
        temporary: &Path,
        job: &str,
        world: (Rank, usize),
        timeout: Duration,
    ) -> Result<Self> {
        let of_user = system::private_folder(temporary).map_err(|error| cannot_use(temporary, &error))?;
        let folder = of_user.join(job);
        remove_left(&of_user, &folder);
        let mut directory = Self::new(folder, world, timeout)?;
        directory.is_own = true;
        Ok(directory)
    }

    fn file(&self, round: u64, rank: Rank) -> PathBuf {
        self.folder.join(format!("round-{round}.rank-{rank}"))
    }

    /// Returns the file that marks a rank as done.
    fn end(&self, rank: Rank) -> PathBuf {
        self.folder.join(format!("end.rank-{rank}"))
    }

    /// Writes this rank's file of this round.
    ///
    /// # Errors
    /// If it already exists and belongs to another living process.
    fn write(&self, own: &[u8]) -> Result<()> {
        let file = self.file(self.round, self.rank);
        if let Some(entry) =
            read(&file).filter(|entry| entry.process != self.process && entry.process.lives())
        {
            return Err(Error::Launch(format!(
                "process {} is rank {} of a world that starts in {}: two jobs at once need a UNISONO_BOOTSTRAP_DIR each",
                entry.process.id,
                self.rank,
                self.folder.display()
            )));
        }
        self.put(&file, own).map_err(|error| cannot_use(&self.folder, &error))
    }

    /// Writes a file atomically.
    fn put(&self, file: &Path, content: &[u8]) -> io::Result<()> {
        let Process { id, started, machine } = &self.process;
        let mut whole = format!("{id} {started} {machine} {}\n", self.ranks).into_bytes();
        whole.extend_from_slice(content);
        replace_file(file, &whole, 0o666)
    }

    /// Waits until `is_over` holds for each of these ranks, or its process has ended. Returns false after a timeout.
    fn wait_for_all(&self, ranks: Range<Rank>, is_over: impl Fn(Rank) -> bool) -> bool {
        let has_ended = |rank: Rank| self.others[rank].as_ref().is_none_or(|process| !process.lives());
        let (began, mut nap) = (Instant::now(), NAPS[0]);
        while !ranks.clone().all(|rank| is_over(rank) || has_ended(rank)) {
            if began.elapsed() > TO_END {
                return false;
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(NAPS[1]);
        }
        true
    }

    /// Returns the bytes of a rank in this round, if it has written them.
    fn take(&mut self, rank: Rank) -> Result<Option<Vec<u8>>> {
        let Some(entry) = read(&self.file(self.round, rank)) else { return Ok(None) };
        let known = &mut self.others[rank];
        // Before the process of a rank is known, the file may belong to a job that was killed.
        if known.as_ref().map_or_else(|| !entry.process.lives(), |known| *known != entry.process) {
            return Ok(None);
        }
        *known = Some(entry.process);
        if entry.ranks != self.ranks {
            return Err(Error::Launch(format!(
                "rank {} is in a world of {} ranks, but rank {rank} in one of {}: WORLD_SIZE must be the same for all",
                self.rank, self.ranks, entry.ranks
            )));
        }
        Ok(Some(entry.content))
    }

    /// # Errors
    /// If one of the missing ranks has ended.
    fn check_alive(&self, missing: &[Rank]) -> Result<()> {
        let is_over = |rank: &&Rank| self.others[**rank].as_ref().is_some_and(|process| !process.lives());
        missing.iter().find(is_over).map_or(Ok(()), |&rank| {
            let id = self.others[rank].as_ref().map_or(0, |process| process.id);
            Err(Error::Launch(format!("rank {rank} (process {id}) has ended before the world began")))
        })
    }

    /// Returns the error text for missing ranks, with possible causes.
    fn missing(&self, missing: &[Rank], waited: Duration) -> String {
        format!(
            "rank {} of {} has waited {} s for {} to begin in {}: was each of the {} processes started, with a RANK of its \
             own, in the same session or with the same UNISONO_BOOTSTRAP_DIR?",
            self.rank,
            self.ranks,
            waited.as_secs_f64().round(),
            named(missing),
            self.folder.display(),
            self.ranks
        )
    }
}

impl Bootstrap for Directory {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.write(own)?;
        let mut all = vec![None; self.ranks];
        let (began, mut checked, mut nap, mut warned) = (Instant::now(), Instant::now(), NAPS[0], false);
        loop {
            for rank in (0..self.ranks).filter(|&rank| all[rank].is_none()).collect::<Vec<_>>() {
                all[rank] = self.take(rank)?;
            }
            let missing: Vec<_> = (0..self.ranks).filter(|&rank| all[rank].is_none()).collect();
            let waited = began.elapsed();
            if missing.is_empty() {
                break;
            }
            if waited > self.timeout {
                return Err(Error::Launch(self.missing(&missing, waited)));
            }
            if checked.elapsed() > ALIVE_EVERY {
                self.check_alive(&missing)?;
                checked = Instant::now();
            }
            if !warned
                && waited > WARN_AFTER
                && (0..self.ranks).find(|rank| !missing.contains(rank)) == Some(self.rank)
            {
                warned = true;
                print_line(&self.missing(&missing, waited));
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(NAPS[1]);
        }
        // All ranks have written in this round, so all have read the previous one.
        if let Some(before) = self.round.checked_sub(1) {
            let _ = fs::remove_file(self.file(before, self.rank));
        }
        self.round += 1;
        Ok(all.into_iter().flatten().collect())
    }
}

impl Drop for Directory {
    /// Ends the bootstrap, after all ranks have received messages over their links, or cannot.
    fn drop(&mut self) {
        // Others may not have read this rank's last file yet, and would ignore it once its process has ended. Rank 0 removes the
        // files when all are done.
        let own = self.end(self.rank);
        let _ = self.put(&own, b"");
        if self.rank != 0 {
            self.wait_for_all(0..1, |_| !own.exists());
            return;
        }
        if !self.wait_for_all(1..self.ranks, |rank| self.end(rank).exists()) {
            return;
        }
        for rank in 0..self.ranks {
            let rounds = self.round.saturating_sub(1)..=self.round;
            let files = rounds.map(|round| self.file(round, rank)).chain([self.end(rank)]);
            files.for_each(|file| drop(fs::remove_file(file)));
        }
        if self.is_own {
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Removes the folders of jobs that were killed before their worlds started, but not this job's own: other ranks may be about to
/// write to it.
fn remove_left(of_user: &Path, own: &Path) {
    let files =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for folder in files(of_user).filter(|folder| folder != own) {
        let lives = |file: &PathBuf| read(file).is_none_or(|entry| entry.process.lives());
        let (living, left): (Vec<_>, Vec<_>) = files(&folder).partition(lives);
        left.iter().for_each(|file| drop(fs::remove_file(file)));
        if living.is_empty() && !left.is_empty() {
            let _ = fs::remove_dir(&folder);
        }
    }
}

/// Returns the content of a rank's file, if there is one.
fn read(file: &Path) -> Option<Entry> {
    let whole = fs::read(file).ok()?;
    let end = whole.iter().position(|&byte| byte == b'\n')?;
    let mut fields = std::str::from_utf8(&whole[..end]).ok()?.split(' ');
    let mut field = || fields.next();
    let process =
        Process { id: field()?.parse().ok()?, started: field()?.parse().ok()?, machine: field()?.to_owned() };
    Some(Entry { process, ranks: field()?.parse().ok()?, content: whole[end + 1..].to_vec() })
}

fn cannot_use(folder: &Path, error: &io::Error) -> Error {
    Error::Launch(format!(
        "ranks cannot find each other in {}: {error}; UNISONO_BOOTSTRAP_DIR names another folder for them",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
