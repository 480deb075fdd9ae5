//! A bootstrap through files in a directory that all ranks can access.
//!
//! For each all-gather, each rank writes a file and reads those of the others. When all ranks are done, rank 0 removes the remaining
//! files. Files of processes that have ended are ignored, since a killed job does not remove its files. This rank cannot check a process
//! of another machine. The file of such a process counts once it contains the number of this rank, which the process has read.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::{Bootstrap, Start, idle, not_begun};
use crate::error::{Error, Result};
use crate::record::named;
use crate::system::{self, Process, replace_file};

/// The initial and the longest sleep between polls.
const NAPS: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(5)];
/// The interval of checks whether the processes found so far are alive.
const ALIVE_EVERY: Duration = Duration::from_millis(100);
/// The time that rank 0 waits for the others to finish, and they for it. The next job removes files that remain then.
const TO_END: Duration = Duration::from_secs(10);

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
    /// A random number, by which ranks of other machines answer.
    number: u64,
    /// The numbers that this rank answers in the first round.
    seen: BTreeSet<u64>,
}

struct Entry {
    process: Process,
    ranks: usize,
    /// The number of the rank that wrote it, and those that it has seen.
    number: u64,
    seen: Vec<u64>,
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
        let directory = Self {
            folder,
            is_own: false,
            rank,
            ranks,
            timeout,
            process: Process::own(),
            round: 0,
            others: vec![None; ranks],
            number: system::nonce()[0],
            seen: BTreeSet::new(),
        };
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
    /// If it already exists and belongs to another process, which is alive or of another machine.
    fn write(&self, own: &[u8]) -> Result<()> {
        let file = self.file(self.round, self.rank);
        if let Some(Entry { process, .. }) =
            read(&file).filter(|entry| entry.process != self.process && entry.process.lives())
        {
            let is_near = process.machine == self.process.machine;
            let killed =
                if is_near { "" } else { "; if it was killed on another machine, remove the files there" };
            return Err(Error::Launch(format!(
                "process {} is rank {} of a world that starts in {}: two jobs at once need a UNISONO_BOOTSTRAP_DIR each{killed}",
                process.id,
                self.rank,
                self.folder.display()
            )));
        }
        let written = self.put(&file, own).or_else(|error| match error.kind() {
            // Rank 0 of an earlier world of this job, or another job that found only files of killed ones, may have just removed the folder.
            io::ErrorKind::NotFound => fs::create_dir_all(&self.folder).and_then(|()| self.put(&file, own)),
            _ => Err(error),
        });
        written.map_err(|error| cannot_use(&self.folder, &error))
    }

    /// Writes a file atomically.
    fn put(&self, file: &Path, content: &[u8]) -> io::Result<()> {
        let Process { id, started, machine } = &self.process;
        let seen: String = self.seen.iter().map(|number| format!(" {number:x}")).collect();
        let head = format!("{id} {started} {machine} {} {:x}{seen}\n", self.ranks, self.number);
        replace_file(file, &[head.as_bytes(), content].concat(), 0o666)
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
        // Before the process of a rank is known, the file may belong to a job that was killed.
        let is_of_world = match &self.others[rank] {
            Some(known) => *known == entry.process,
            None => self.has_answered(&entry),
        };
        if !is_of_world {
            return Ok(None);
        }
        self.others[rank] = Some(entry.process);
        if entry.ranks != self.ranks {
            return Err(Error::Launch(format!(
                "rank {} is in a world of {} ranks, but rank {rank} in one of {}: WORLD_SIZE must be the same for all",
                self.rank, self.ranks, entry.ranks
            )));
        }
        Ok(Some(entry.content))
    }

    /// Returns whether the process that wrote a file is alive. If it is of another machine, this rank answers it.
    fn has_answered(&mut self, entry: &Entry) -> bool {
        if entry.process.machine == self.process.machine {
            return entry.process.lives();
        }
        self.seen.insert(entry.number);
        entry.seen.contains(&self.number)
    }

    /// # Errors
    /// If one of the missing ranks has ended, or has left the start.
    fn check_alive(&self, missing: &[Rank]) -> Result<()> {
        for &rank in missing {
            let Some(process) = &self.others[rank] else { continue };
            let has_written = |file: PathBuf| read(&file).is_some_and(|entry| entry.process == *process);
            let is_over = !process.lives() || has_written(self.end(rank));
            // It may have written its last contribution since this rank looked for it.
            if is_over && !has_written(self.file(self.round, rank)) {
                let id = process.id;
                return Err(Error::Launch(format!(
                    "rank {rank} (process {id}) has ended before the world began"
                )));
            }
        }
        Ok(())
    }

    /// Returns the error text for missing ranks, with possible causes.
    fn missing(&self, missing: &[Rank], waited: Duration) -> String {
        let ended = missing.iter().filter_map(|&rank| {
            let process = read(&self.file(self.round, rank))?.process;
            let why = match (process.lives(), process.machine == self.process.machine) {
                (false, _) => "has ended",
                (true, false) => "does not answer from another machine",
                (true, true) => return None,
            };
            Some(format!("; process {} wrote the file of rank {rank} and {why}", process.id))
        });
        let ended: String = ended.collect();
        let question = format!(
            "was each of the {} processes started, with a RANK of its own, in the same session or with the same UNISONO_BOOTSTRAP_DIR \
             (here {})?{ended}",
            self.ranks,
            self.folder.display()
        );
        not_begun(&format!("rank {} of {}", self.rank, self.ranks), waited, &named(missing), &question)
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
        let (mut start, mut checked, mut nap) = (Start::new(self.timeout), Instant::now(), NAPS[0]);
        let mut answered = 0;
        loop {
            for rank in (0..self.ranks).filter(|&rank| all[rank].is_none()).collect::<Vec<_>>() {
                all[rank] = self.take(rank)?;
            }
            if self.seen.len() > answered {
                answered = self.seen.len();
                let file = self.file(self.round, self.rank);
                self.put(&file, own).map_err(|error| cannot_use(&self.folder, &error))?;
            }
            let missing: Vec<_> = (0..self.ranks).filter(|&rank| all[rank].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            // The first of the ranks that are here reports the others.
            let reports = all.iter().position(Option::is_some) == Some(self.rank);
            start.check(reports, |waited| self.missing(&missing, waited))?;
            if checked.elapsed() > ALIVE_EVERY {
                self.check_alive(&missing)?;
                checked = Instant::now();
            }
            idle(self.rank)?;
            std::thread::sleep(nap);
            nap = (nap * 2).min(NAPS[1]);
        }
        // All ranks have written in this round, so all have read the previous one.
        if let Some(before) = self.round.checked_sub(1) {
            let _ = fs::remove_file(self.file(before, self.rank));
        }
        self.round += 1;
        self.seen.clear();
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

fn read(file: &Path) -> Option<Entry> {
    let whole = fs::read(file).ok()?;
    let end = whole.iter().position(|&byte| byte == b'\n')?;
    let mut fields = std::str::from_utf8(&whole[..end]).ok()?.split(' ');
    let mut field = || fields.next();
    let process =
        Process { id: field()?.parse().ok()?, started: field()?.parse().ok()?, machine: field()?.to_owned() };
    let ranks = field()?.parse().ok()?;
    let mut numbers = fields.map(|number| u64::from_str_radix(number, 16).unwrap_or(0));
    let (number, seen) = (numbers.next().unwrap_or(0), numbers.collect());
    Some(Entry { process, ranks, number, seen, content: whole[end + 1..].to_vec() })
}

fn cannot_use(folder: &Path, error: &io::Error) -> Error {
    Error::Launch(format!(
        "ranks cannot find each other in {}: {error}; UNISONO_BOOTSTRAP_DIR names another folder for them",
        folder.display()
    ))
}

#[cfg(test)]
mod tests;
