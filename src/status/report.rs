//! Diagnosis of a hang or failure from the flight recorders of all ranks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use unisono_collectives::Rank;

use super::dump::Dump;
use crate::record::{Record, Seconds, Stage, State, described_wait, named, place};

/// An error of reading flight recorders.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlightError {
    /// A folder or a file cannot be read.
    #[error("cannot read `{path}`: {cause}")]
    Unreadable {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The folder contains no flight recorder.
    #[error("there are no flight recorders (rank-0.json, …) in `{path}`")]
    None {
        /// The folder.
        path: PathBuf,
    },
    /// A file is damaged.
    #[error("`{path}` is not the flight recorder of a rank: {why}")]
    Bad {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
}

/// The width to which the cells of a table are padded at most.
const WIDEST: usize = 200;

/// The flight recorders of all ranks of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flight {
    ranks: usize,
    /// By rank.
    dumps: BTreeMap<Rank, Dump>,
}

impl Flight {
    /// Reads all flight recorders of a folder.
    ///
    /// # Errors
    /// [`FlightError`], which names the file that cannot be read or is damaged.
    pub fn read(folder: &Path) -> Result<Self, FlightError> {
        let unreadable = |path: &Path, cause| FlightError::Unreadable { path: path.to_owned(), cause };
        let mut flight = Self::default();
        let entries = std::fs::read_dir(folder).map_err(|cause| unreadable(folder, cause))?;
        for entry in entries {
            let path = entry.map_err(|cause| unreadable(folder, cause))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(rank) = name.strip_prefix("rank-").and_then(|name| name.strip_suffix(".json")) else {
                continue;
            };
            let bytes = std::fs::read(&path).map_err(|cause| unreadable(&path, cause))?;
            let added = Dump::from_json(&bytes).and_then(|dump| match dump.rank {
                of if of.to_string() != rank => Err(format!("it is of rank {of}")),
                _ => flight.add(dump),
            });
            added.map_err(|why| FlightError::Bad { path: path.clone(), why })?;
        }
        if flight.dumps.is_empty() { Err(FlightError::None { path: folder.to_owned() }) } else { Ok(flight) }
    }

    /// Adds the dump of a rank, replacing an earlier one.
    ///
    /// # Errors
    /// A description of the difference, if it belongs to another world than the others.
    pub fn add(&mut self, dump: Dump) -> Result<(), String> {
        if !self.dumps.is_empty() && dump.ranks != self.ranks {
            return Err(format!(
                "it is of a world of {} ranks, and the other files are of a world of {}",
                dump.ranks, self.ranks
            ));
        }
        self.ranks = dump.ranks;
        self.dumps.insert(dump.rank, dump);
        Ok(())
    }

    /// Returns the findings as sentences, the most important first.
    pub fn findings(&self) -> Vec<String> {
        let first = self.failed().into_iter().chain(self.mismatch());
        first.chain([self.waits()]).chain(self.missing()).collect()
    }

    /// Returns the ranks that failed first, as recorded on each node.
    fn failed(&self) -> Vec<String> {
        let mut failed: Vec<_> = self.dumps.values().filter_map(|dump| dump.failed.as_ref()).collect();
        failed.sort_by_key(|failed| failed.rank);
        failed.dedup();
        let name = |rank| self.name(rank);
        failed.into_iter().map(|failed| format!("{} failed: {}", name(failed.rank), failed.cause)).collect()
    }

    /// Returns the first sequence number with different calls.
    fn mismatch(&self) -> Option<String> {
        let mut calls: BTreeMap<_, Vec<(&Record, Vec<Rank>)>> = BTreeMap::new();
        for (&rank, dump) in &self.dumps {
            for record in &dump.records {
                let called = calls.entry(place(record)).or_default();
                match called.iter_mut().find(|(other, _)| other.is_same_call(record)) {
                    Some((_, ranks)) => ranks.push(rank),
                    None => called.push((record, vec![rank])),
                }
            }
        }
        let called = calls.into_values().find(|called| called.len() > 1)?;
        let called: Vec<_> =
            called.iter().map(|(record, by)| format!("{} called {record}", named(by))).collect();
        Some(format!("ranks disagree: {}", called.join(", but ")))
    }

    /// Describes the ranks that wait, and the missing ones.
    fn waits(&self) -> String {
        let known = |rank| self.dumps.get(&rank).map(|dump| (&dump.doing, None));
        let ranks: Vec<_> = (0..self.ranks).map(|rank| (rank, known(rank))).collect();
        let text = described_wait(&ranks, |rank| self.name(rank));
        text.map_or_else(|| "no rank is in a call".to_owned(), |text| text.trim_end().to_owned())
    }

    fn missing(&self) -> Option<String> {
        let missing: Vec<_> = (0..self.ranks).filter(|rank| !self.dumps.contains_key(rank)).collect();
        let why = match missing.len() {
            0 => return None,
            1 => "it ended before it could write one, or its node has another folder",
            _ => "they ended before they could write one, or their nodes have other folders",
        };
        Some(format!("there is no flight recorder of {}: {why}", named(&missing)))
    }

    /// Returns a table with a line for each rank.
    pub fn table(&self) -> String {
        let head = ["rank", "host", "process", "state", "since", "last call", "step", "waits for"];
        let mut rows = vec![head.map(str::to_owned)];
        for dump in self.dumps.values() {
            let (doing, last) = (&dump.doing, dump.doing.last.as_ref());
            rows.push([
                dump.rank.to_string(),
                doing.host.clone(),
                doing.process_id.to_string(),
                state(dump).to_owned(),
                Seconds(doing.since_s).to_string(),
                last.map_or("-".to_owned(), Record::to_string),
                last.map_or("-".to_owned(), |last| format!("{}.{}", last.phase, last.step)),
                last.and_then(|last| last.waits_for).map_or("-".to_owned(), |rank| rank.to_string()),
            ]);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        // A damaged file may have a text that is wider than the formatter allows.
        let widths: Vec<_> = (0..8).map(|column| width(column).min(WIDEST)).collect();
        let line = |row: &[String; 8]| {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
            format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        rows.iter().map(line).collect()
    }

    /// Returns a rank with its process: `rank 3 (process 77 on node1)`.
    fn name(&self, rank: Rank) -> String {
        match self.dumps.get(&rank) {
            None => format!("rank {rank}"),
            Some(dump) => format!("rank {rank} (process {} on {})", dump.doing.process_id, dump.doing.host),
        }
    }
}

fn state(dump: &Dump) -> &'static str {
    match (dump.doing.state, &dump.doing.last) {
        (State::Outside, Some(last)) if last.stage == Stage::Failed => "failed",
        (State::NotYet, _) => "not yet",
        (State::Inside, _) => "inside",
        (State::Outside, _) => "outside",
        (State::Quiet, _) => "quiet",
        (State::Left, _) => "left",
    }
}

#[cfg(test)]
mod tests;
