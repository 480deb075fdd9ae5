//! Measures the constants of a machine at its first use, and caches them in a file for later programs.
//!
//! There is a file for each machine, transport, number of ranks and number of cores. Ranks share caches and memory bandwidth, so the time of
//! a message depends on the number of ranks.

use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use super::{MAX_STABLE_RATIO, Measured, QUICK, measure_with};
use crate::communicator::Communicator;
use crate::error::Result;
use crate::kernels::ReduceOp;
use crate::select::Choice;
use crate::system::{self, AvailableMemory};
use crate::transport::gather;
use crate::tuning::{self, Reach, Section, Tuning};

/// The largest oversubscribed world that is measured: fitting the time of a context switch runs the clock a thousand times.
const MAX_OVERSUBSCRIBED: usize = 16;
/// The memory that a rank needs to measure: its array, and copies of parts of it.
const MEMORY_OF_A_RANK: u64 = 64 << 20;
/// The approximate time to measure messages. Ranks without a core sleep during it.
const MEASURING_TIME: Duration = Duration::from_millis(250);

/// The files that this process has measured or read, by name: constants do not change while it runs.
static KNOWN: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// The hash of the machine and the version of the library, which is part of file names. Reading stops at the first processor model, since
/// the list of processors may be long.
static MACHINE: LazyLock<u64> = LazyLock::new(|| {
    let cpus = fs::File::open("/proc/cpuinfo").map(BufReader::new).into_iter().flat_map(BufRead::lines);
    let model = cpus.map_while(io::Result::ok).find(|line| line.starts_with("model name"));
    let machine = (system::host(), model, env!("CARGO_PKG_VERSION"));
    BuildHasherDefault::<DefaultHasher>::default().hash_one(machine)
});

/// A world whose constants can be measured.
#[derive(Debug, Clone)]
pub(super) struct World {
    name: String,
    ranks: usize,
    cores: usize,
    folder: Option<PathBuf>,
}

impl World {
    /// Returns a world with this many ranks, whose constants are cached in `folder`; `None` if it has one rank.
    pub(super) fn new(
        transport: &'static str,
        ranks: usize,
        cores: usize,
        folder: Option<&Path>,
    ) -> Option<Self> {
        if ranks < 2 {
            return None;
        }
        let name = format!("{:016x}-{transport}-{ranks}-ranks-on-{cores}-cores.toml", *MACHINE);
        Some(Self { name, ranks, cores, folder: folder.map(Path::to_owned) })
    }

    /// Returns whether the world is small enough to be measured at its first use, and the node has the memory for it.
    pub(super) fn is_measurable(&self) -> bool {
        let is_oversubscribed = self.ranks > self.cores;
        let is_small = !is_oversubscribed || self.ranks <= MAX_OVERSUBSCRIBED;
        is_small && AvailableMemory::shortage(self.ranks as u64 * MEMORY_OF_A_RANK).is_none()
    }

    pub(super) fn file(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(&self.name))
    }

    /// Returns the text of the cached file, if there is a valid one.
    pub(super) fn cached(&self) -> Option<String> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = known.get(&self.name) {
            return Some(text.clone());
        }
        let text = fs::read_to_string(self.file()?).ok()?;
        // An invalid file is replaced.
        tuning::read(&text).ok().filter(|sections| !sections.is_empty())?;
        known.insert(self.name.clone(), text.clone());
        Some(text)
    }

    /// Measures the constants, and caches them if the measurement was stable. All ranks call it, and get identical texts.
    pub(super) fn measure(&self, comm: &mut Communicator) -> Result<String> {
        let mut known = Tuning::default();
        let mut is_steady = true;
        if self.cores > 1 && self.ranks > self.cores {
            // First measure messages between ranks with a core each, then the cost of context switches.
            let mut text = String::new();
            let group = comm.split((comm.rank() < self.cores).then_some(0), 0)?;
            match group {
                Some(mut group) => {
                    let measured = measure_with(&QUICK, &mut group, &known)?;
                    is_steady = measured.iter().all(Measured::is_steady);
                    text = tuning::write(&sections(measured));
                }
                None => std::thread::sleep(MEASURING_TIME),
            }
            known = gather(&mut comm.as_bootstrap("constants"), &text)?[0].parse().expect("rank 0 wrote it");
        }
        let started = Started::now();
        let measured = measure_with(&QUICK, comm, &known)?;
        is_steady &= if self.ranks > self.cores {
            started.had_cores(comm, self.cores)?
        } else {
            measured.iter().all(Measured::is_steady)
        };
        let text = tuning::write(&sections(measured));
        if comm.rank() == 0 {
            KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(self.name.clone(), text.clone());
            if let Some(folder) = self.folder.as_ref().filter(|_| is_steady) {
                // Atomically, because other programs may read it at the same time. If it cannot be written, the next one measures again.
                let replace = |()| system::replace_file(&folder.join(&self.name), text.as_bytes(), 0o666);
                let _ = fs::create_dir_all(folder).and_then(replace);
            }
        }
        Ok(text)
    }
}

/// The processor time of this rank and the time of the clock at the start of a measurement, in nanoseconds.
#[derive(Debug)]
struct Started {
    used_ns: f64,
    now_ns: f64,
}

impl Started {
    fn now() -> Self {
        Self { used_ns: system::thread_time_ns() as f64, now_ns: system::now_ns() as f64 }
    }

    /// Returns whether the ranks, which outnumber the cores and so keep them busy, have had the cores almost to themselves since then. A
    /// context switch to another program lasts a time slice, a thousand times as long as one between ranks. All ranks call it.
    fn had_cores(&self, comm: &mut Communicator, cores: usize) -> Result<bool> {
        let now = Self::now();
        let mut spent_ns = [now.used_ns - self.used_ns, now.now_ns - self.now_ns];
        comm.call().algorithm(Choice::Auto).all_reduce(&mut spent_ns, ReduceOp::Mean)?;
        let [used_ns, passed_ns] = spent_ns;
        Ok(MAX_STABLE_RATIO * used_ns * comm.ranks() as f64 >= passed_ns * cores as f64)
    }
}

fn sections(measured: Vec<Measured>) -> Vec<(Reach, Section)> {
    measured.into_iter().map(|one| (one.reach, one.section)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn world_is_measured_only_with_enough_memory() {
        let is_measurable = |ranks| World::new("shm", ranks, ranks, None).unwrap().is_measurable();
        assert!(is_measurable(2) && !is_measurable(1 << 30));
    }

    #[test]
    fn measurement_is_unstable_if_other_programs_use_the_cores() {
        crate::threads(4, |mut comm| {
            let mut had_cores = |share: f64| {
                let (second_ns, Started { used_ns, now_ns }) = (1e9, Started::now());
                // Four ranks take turns on two cores.
                let started =
                    Started { used_ns: used_ns - share * second_ns / 2.0, now_ns: now_ns - second_ns };
                started.had_cores(&mut comm, 2).unwrap()
            };
            assert!(had_cores(0.9) && !had_cores(0.4));
        });
    }
}
