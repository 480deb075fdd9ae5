//! Diagnoses a machine and the launch of a program, with one line per finding.

use std::fmt;

use serde::{Deserialize, Serialize};
use unisono::config::Launcher;
use unisono::internals::{NodeFacts, gather};
use unisono::{Communicator, Result};

mod launch;
mod machine;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum State {
    /// As it should be.
    Fine,
    /// Slower than possible, or unavailable, without causing a failure.
    Note,
    /// Needs a remedy.
    Wrong,
}

impl State {
    /// Returns the word at the start of a line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Wrong => "WRONG",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its severity.
    pub state: State,
    /// The subject of the check, such as "cores".
    pub subject: String,
    /// The result on one line, with the remedy if there is a problem.
    pub text: String,
}

impl Finding {
    fn new(state: State, subject: &str, text: impl Into<String>) -> Self {
        Self { state, subject: subject.to_owned(), text: text.into().replace(['\n', '\t'], " ") }
    }

    fn fine(subject: &str, text: impl Into<String>) -> Self {
        Self::new(State::Fine, subject, text)
    }

    fn note(subject: &str, text: impl Into<String>) -> Self {
        Self::new(State::Note, subject, text)
    }

    fn wrong(subject: &str, text: impl Into<String>) -> Self {
        Self::new(State::Wrong, subject, text)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<5} {:<12} {}", self.state.name(), self.subject, self.text)
    }
}

/// Runs all checks on every rank, and returns the findings of all ranks on rank 0, nothing on the others. A finding that all ranks
/// share is listed once. Other findings name their ranks. All ranks call it.
///
/// ```
/// let found = unisono::threads(2, |mut comm| unisono_bench::doctor::examine(&mut comm)).remove(0).unwrap();
/// assert!(found.iter().any(|finding| finding.subject == "cores"));
/// ```
///
/// # Errors
/// As [`Communicator::all_reduce`].
pub fn examine(comm: &mut Communicator) -> Result<Vec<Finding>> {
    let node = NodeFacts::of(comm);
    let mut own = launch::findings(comm, &node)?;
    let (ranks, nodes) = (comm.ranks(), comm.topology().nodes());
    own.extend(machine::findings(ranks, node.local_ranks, nodes));
    let of_all = gather(comm, &own)?;
    Ok(if comm.rank() == 0 { merged(of_all) } else { Vec::new() })
}

/// Runs the checks that need no world, for one process whose launch was refused (an error of `unisono::init`). The reason is
/// one of the findings.
///
/// ```
/// let found = unisono_bench::doctor::examine_refused("the launcher belongs to another MPI");
/// assert!(found.iter().any(|finding| finding.subject == "launch"));
/// ```
pub fn examine_refused(why: &str) -> Vec<Finding> {
    let launcher = Launcher::detect();
    let mut findings = launch::findings_without_world(why);
    let local_ranks = launcher.local_ranks.unwrap_or(1);
    findings.extend(machine::findings(launcher.ranks.unwrap_or(1), local_ranks, 1));
    findings
}

/// Merges equal findings of several ranks into one line.
fn merged(of_all: Vec<Vec<Finding>>) -> Vec<Finding> {
    let ranks = of_all.len();
    let mut merged: Vec<(Finding, Vec<usize>)> = Vec::new();
    for (rank, findings) in of_all.into_iter().enumerate() {
        for finding in findings {
            match merged.iter_mut().find(|(known, _)| *known == finding) {
                Some((_, seen_by)) => seen_by.push(rank),
                None => merged.push((finding, vec![rank])),
            }
        }
    }
    // Findings about the same subject are listed together, from all ranks.
    let subjects: Vec<_> = merged.iter().map(|(finding, _)| finding.subject.clone()).collect();
    merged.sort_by_key(|(finding, _)| subjects.iter().position(|subject| *subject == finding.subject));
    let with_ranks = |(finding, seen_by): (Finding, Vec<usize>)| match &seen_by[..] {
        _ if seen_by.len() == ranks => finding,
        [rank] => Finding { text: format!("rank {rank}: {}", finding.text), ..finding },
        several => {
            let several: Vec<_> = several.iter().map(usize::to_string).collect();
            Finding { text: format!("ranks {}: {}", several.join(", "), finding.text), ..finding }
        }
    };
    merged.into_iter().map(with_ranks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_findings_are_listed_once() {
        let cores = Finding::fine("cores", "2");
        let gpu = |number: usize| Finding::fine("gpu", format!("GPU {number}"));
        let merged = merged(vec![
            vec![cores.clone(), gpu(0), Finding::fine("shm", "here")],
            vec![cores.clone(), gpu(1), Finding::fine("shm", "here")],
            vec![cores.clone(), gpu(1), Finding::wrong("shm", "gone")],
        ]);
        let texts: Vec<_> = merged.iter().map(|finding| (finding.state, &*finding.text)).collect();
        let expected = [
            (State::Fine, "2"),
            (State::Fine, "rank 0: GPU 0"),
            (State::Fine, "ranks 1, 2: GPU 1"),
            (State::Fine, "ranks 0, 1: here"),
            (State::Wrong, "rank 2: gone"),
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn findings_survive_encoding() {
        let of_all = unisono::threads(3, |mut comm| {
            let text = "x".repeat(comm.rank() * 10);
            gather(&mut comm, &vec![Finding::note("a b", text), Finding::wrong("c", "d\ne")]).unwrap()
        });
        for (rank, findings) in of_all[0].iter().enumerate() {
            assert_eq!(findings[0], Finding::note("a b", "x".repeat(rank * 10)));
            assert_eq!(findings[1].to_string(), "WRONG c            d e");
        }
    }
}
