//! The constants of this machine, measured by the first program that runs on it with as many ranks, and kept for the next ones.
//!
//! They are kept by machine, cores and ranks: ranks share caches and memory, so what a message takes depends on how many there are.

use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use super::rank_0::text_of_rank_0;
use super::{Measured, measure_quickly};
use crate::communicator::Communicator;
use crate::error::Result;
use crate::system;
use crate::tuning::{self, Reach, Section, Tuning};

/// Where ranks take turns, the clock is run a thousand times to find what a hand-over takes; with more ranks that takes too long.
const MOST_IN_TURN: usize = 16;
/// About how long the messages between two ranks take to measure. Ranks without a core of their own sleep meanwhile.
const NAP: Duration = Duration::from_millis(150);

/// What this process has measured or read: constants stay the same as long as it runs.
static KNOWN: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// A world whose constants can be measured.
#[derive(Debug, Clone)]
pub(super) struct World {
    name: String,
    ranks: usize,
    cores: usize,
    folder: Option<PathBuf>,
}

impl World {
    /// A world of so many ranks of one node, whose constants are kept in this folder; `None` if it has none of its own.
    pub(super) fn new(
        transport: &'static str,
        ranks: usize,
        cores: usize,
        folder: Option<&Path>,
    ) -> Option<Self> {
        let takes_turns = ranks > cores;
        if ranks < 2 || takes_turns && ranks > MOST_IN_TURN {
            return None;
        }
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find(|line| line.starts_with("model name"));
        let machine = (system::host(), model, env!("CARGO_PKG_VERSION"));
        let machine = BuildHasherDefault::<DefaultHasher>::default().hash_one(machine);
        let name = format!("{machine:016x}-{transport}-{ranks}-ranks-on-{cores}-cores.toml");
        Some(Self { name, ranks, cores, folder: folder.map(Path::to_owned) })
    }

    /// The constants that are known, as the text of a file.
    pub(super) fn known(&self) -> Option<String> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = known.get(&self.name) {
            return Some(text.clone());
        }
        let text = fs::read_to_string(self.folder.as_ref()?.join(&self.name)).ok()?;
        // A file that somebody has damaged is replaced.
        tuning::read(&text).ok().filter(|sections| !sections.is_empty())?;
        known.insert(self.name.clone(), text.clone());
        Some(text)
    }

    /// Measures the constants, in about a tenth of a second, and keeps them if the machine was the same all the time. Called by all
    /// ranks, which get the same text.
    pub(super) fn measure(&self, comm: &mut Communicator) -> Result<String> {
        let mut known = Tuning::default();
        let mut is_steady = true;
        if self.cores > 1 && self.ranks > self.cores {
            // What ranks with a core each would take, and then what it adds that they take turns.
            let mut text = String::new();
            let group = comm.split((comm.rank() < self.cores).then_some(0), 0)?;
            match group {
                Some(mut group) => {
                    let measured = measure_quickly(&mut group, &known)?;
                    is_steady = measured.iter().all(Measured::is_steady);
                    text = tuning::write(&sections(measured));
                }
                None => std::thread::sleep(NAP),
            }
            known = text_of_rank_0(comm, &text)?.parse().expect("rank 0 wrote it");
        }
        let measured = measure_quickly(comm, &known)?;
        is_steady &= self.ranks > self.cores || measured.iter().all(Measured::is_steady);
        let text = tuning::write(&sections(measured));
        if comm.rank() == 0 {
            KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(self.name.clone(), text.clone());
            if let Some(folder) = self.folder.as_ref().filter(|_| is_steady) {
                // Without a place for them, each process measures its own.
                let _ = write(folder, &self.name, &text);
            }
        }
        Ok(text)
    }
}

fn sections(measured: Vec<Measured>) -> Vec<(Reach, Section)> {
    measured.into_iter().map(|one| (one.reach, one.section)).collect()
}

/// Writes the file as a whole: other programs may read it at the same time.
fn write(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let new = folder.join(format!("{name}.{}", std::process::id()));
    fs::write(&new, text).and_then(|()| fs::rename(&new, folder.join(name)))
}
