//! Settings from environment variables: the only place that reads them.

use std::env::VarError;
use std::path::{Path, PathBuf};
use std::time::Duration;

use unisono_collectives::Topology;

use crate::error::{Error, Result};
use crate::system::private_path;

mod bootstrap;
mod chaos;
mod constants;
mod cores;
mod interfaces;
mod launcher;
mod links;
mod metrics;
mod preload;
mod variables;

pub use bootstrap::{bootstrap_folder, joins};
pub(crate) use bootstrap::{job, rendezvous, secret};
pub(crate) use chaos::Chaos;
pub(crate) use constants::Constants;
pub use cores::share_cores;
pub(crate) use interfaces::Interfaces;
pub use launcher::{Launcher, OF_MPI_LAUNCHERS, Starter, tf_config};
pub(crate) use links::{Inside, KernelCopies, Network};
pub(crate) use metrics::Metrics;
pub use preload::{PRELOAD, find_program, preloaded};
pub use variables::{ACCELERATE_REPORT, BOOTSTRAP_DIR, JOIN, SECRET, exported, warn_of_unread_settings};
use variables::{
    ALGORITHM, CHAOS, FIRST_TIMEOUT, FLIGHT_DIR, KERNEL_COPIES, METRICS, NETWORK, NODES, QUIET_TIMEOUT,
    SEGMENT_BYTES, TIMEOUT, TRACE, TRANSPORT, TUNING, WARN, WARNINGS, WATCHDOG,
};

/// The largest size of a declared node.
const MAX_DECLARED: usize = 1 << 16;
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// Longer than the other timeouts, since ranks may reach the first call at very different times.
const DEFAULT_FIRST_TIMEOUT: Duration = Duration::from_secs(1800);
/// Segments are multiples of a cache line, and so of elements.
const SEGMENT_UNIT_BYTES: usize = 64;

/// The effect of a rank's failure on the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// Calls return errors, and no process ends: for libraries inside a larger program. Installs no signal handler and no panic hook, and starts no
    /// thread except for non-blocking calls. Ranks that connect over TCP listen, and may use threads, only while they connect. Only warnings and the
    /// location of flight recorder files are printed, on standard error.
    ///
    /// Waiting ranks detect failures: a call that waits for a rank whose process is killed returns an error within half a second,
    /// on this machine and over TCP.
    #[default]
    ReturnError,
    /// Ends the program. The failed rank, the call and the cause are printed on standard error, the other ranks are informed at
    /// once, and all processes end within ten seconds.
    EndJob,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(crate) warn: Duration,
    pub(crate) timeout: Duration,
    /// At least `timeout`, unless set.
    pub(crate) first_timeout: Duration,
    pub(crate) quiet_timeout: Duration,
    pub(crate) flight_dir: Option<PathBuf>,
    /// Declared nodes, which override the real topology.
    pub(crate) nodes: Option<Topology>,
    pub(crate) algorithm: Option<String>,
    pub(crate) segment_bytes: usize,
    pub(crate) inside: Inside,
    pub(crate) network: Network,
    /// Whether ranks without MPI connect even if they share memory, since other groups of the same split do and all ranks make the same calls.
    pub(crate) connects: bool,
    pub(crate) kernel_copies: KernelCopies,
    /// Whether nodes have control connections, which report failures.
    pub(crate) watchdog: bool,
    pub(crate) constants: Constants,
    pub(crate) warnings: bool,
    pub(crate) chaos: Option<Chaos>,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) trace: Option<PathBuf>,
    pub(crate) on_failure: OnFailure,
}

/// Returns the default parent of the flight recorder folders of this user's jobs.
pub(crate) fn flight_dirs(temporary: &Path) -> PathBuf {
    private_path(temporary).join("flight-recorders")
}

impl Default for Config {
    fn default() -> Self {
        Self {
            warn: Duration::from_secs(60),
            timeout: DEFAULT_TIMEOUT,
            first_timeout: DEFAULT_FIRST_TIMEOUT,
            quiet_timeout: Duration::from_secs(24 * 3600),
            flight_dir: None,
            nodes: None,
            algorithm: None,
            // Large enough for little overhead, small enough for a core's cache.
            segment_bytes: 256 * 1024,
            inside: Inside::default(),
            network: Network::default(),
            connects: false,
            kernel_copies: KernelCopies::default(),
            watchdog: true,
            constants: Constants::default(),
            warnings: true,
            chaos: None,
            metrics: None,
            trace: None,
            on_failure: OnFailure::default(),
        }
    }
}

impl Config {
    pub(crate) fn from_environment() -> Result<Self> {
        Self::read(|name| std::env::var(name))
    }

    /// Returns the flight recorder folder of a job. The default is a folder of the job in the [folder](flight_dirs) of all jobs of this user.
    pub(crate) fn flight_dir(&self, job: u64) -> PathBuf {
        let of_job = || flight_dirs(&std::env::temp_dir()).join(format!("{job:016x}"));
        self.flight_dir.clone().unwrap_or_else(of_job)
    }

    fn read(variable: impl Fn(&str) -> Result<String, VarError>) -> Result<Self> {
        let (variable, mut config) = (&variable, Self::default());
        let any = |text: &str| Some(text.to_owned());
        let folder = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let expected = "a number of seconds, at least 1e-9 and below 2^64";
        let seconds =
            |name, default| parsed(variable, name, expected, seconds).map(|set| set.unwrap_or(default));
        config.warn = seconds(WARN, config.warn)?;
        config.timeout = seconds(TIMEOUT, DEFAULT_TIMEOUT)?;
        config.first_timeout = seconds(FIRST_TIMEOUT, DEFAULT_FIRST_TIMEOUT.max(config.timeout))?;
        config.quiet_timeout = seconds(QUIET_TIMEOUT, config.quiet_timeout)?;
        config.flight_dir = parsed(variable, FLIGHT_DIR, "a folder", |text| Some(folder(text)))?.flatten();
        let expected = "sizes of nodes, each from 1 to 65536, such as 2,2";
        let sizes = parsed(variable, NODES, expected, node_sizes)?;
        config.nodes = sizes.map(|sizes| Topology::from_node_sizes(&sizes));
        let expected = "a multiple of 64 above 0 and below 2^31";
        config.segment_bytes =
            parsed(variable, SEGMENT_BYTES, expected, segment_bytes)?.unwrap_or(config.segment_bytes);
        let transports = Inside::ALL.map(|one| (one.name(), one));
        config.inside = one_of(variable, TRANSPORT, transports, config.inside)?;
        let networks = Network::ALL.map(|one| (one.name(), one));
        config.network = one_of(variable, NETWORK, networks, config.network)?;
        config.check_links()?;
        let copies = KernelCopies::ALL.map(|one| (one.name(), one));
        config.kernel_copies = one_of(variable, KERNEL_COPIES, copies, config.kernel_copies)?;
        config.warnings = one_of(variable, WARNINGS, [("on", true), ("off", false)], config.warnings)?;
        let expected = "such as seed=7,delay_us=200,lose=0.001 (lose is from 0 to 1), or a part of it";
        config.chaos = parsed(variable, CHAOS, expected, Chaos::read)?;
        config.watchdog = one_of(variable, WATCHDOG, [("auto", true), ("off", false)], config.watchdog)?;
        config.metrics = parsed(variable, METRICS, metrics::EXPECTED, Metrics::read)?;
        config.trace = parsed(variable, TRACE, "a folder", folder)?;
        config.algorithm = parsed(variable, ALGORITHM, "the name of an algorithm", any)?;
        config.constants = Constants::set_to(parsed(variable, TUNING, constants::EXPECTED, any)?, variable);
        Ok(config)
    }

    /// Returns whether waiting ranks detect failures on other nodes, since no thread does.
    pub(crate) fn watched_by_ranks(&self) -> bool {
        self.watchdog && self.on_failure == OnFailure::ReturnError
    }

    /// Returns the settings that must be identical on all ranks. Otherwise ranks would deadlock, or send unexpected messages.
    pub(crate) fn alike(&self) -> Vec<(&'static str, String)> {
        let nodes = |nodes: &Topology| {
            let sizes = (0..nodes.nodes()).map(|node| nodes.node(node).ranks().to_string());
            sizes.collect::<Vec<_>>().join(",")
        };
        vec![
            (TRANSPORT, self.inside.name().to_owned()),
            (NETWORK, self.network.name().to_owned()),
            (KERNEL_COPIES, self.kernel_copies.name().to_owned()),
            (NODES, self.nodes.as_ref().map_or_else(String::new, nodes)),
            (SEGMENT_BYTES, self.segment_bytes.to_string()),
            (ALGORITHM, self.algorithm.clone().unwrap_or_default()),
            ("OnFailure", format!("{:?}", self.on_failure)),
            (WATCHDOG, self.watchdog.to_string()),
        ]
    }
}

/// Returns the value of a variable, if it is set. `parse` returns `None` for an invalid value.
fn parsed<T>(
    variable: &impl Fn(&str) -> Result<String, VarError>,
    name: &str,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>> {
    let wrong = |value: &str| {
        Error::Setting(format!("the environment variable {name} is {value:?}, and should be {expected}"))
    };
    match variable(name) {
        Ok(value) => parse(&value).map(Some).ok_or_else(|| wrong(&value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(value)) => Err(wrong(&value.to_string_lossy())),
    }
}

/// Returns the value whose name a variable has, or the default.
fn one_of<T: Copy, const N: usize>(
    variable: &impl Fn(&str) -> Result<String, VarError>,
    name: &str,
    named: [(&str, T); N],
    default: T,
) -> Result<T> {
    let names = named.map(|(name, _)| name);
    let expected = match names.split_last() {
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    };
    let find = |text: &str| named.into_iter().find(|(name, _)| *name == text).map(|(_, value)| value);
    Ok(parsed(variable, name, &expected, find)?.unwrap_or(default))
}

/// Parses a duration that is not 0, also after it is rounded to nanoseconds.
fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok().filter(|duration| !duration.is_zero())
}

fn node_sizes(text: &str) -> Option<Vec<usize>> {
    let size = |text: &str| text.trim().parse().ok().filter(|size| (1..=MAX_DECLARED).contains(size));
    text.split(',').map(size).collect()
}

fn segment_bytes(text: &str) -> Option<usize> {
    let allowed = |&size: &usize| size > 0 && size.is_multiple_of(SEGMENT_UNIT_BYTES) && size < 1 << 31;
    text.parse().ok().filter(allowed)
}

/// Locations of NCCL, from the environment.
#[cfg(feature = "nccl")]
#[derive(Debug)]
pub(crate) struct NcclPlaces {
    /// The file or folder set by the user.
    pub(crate) given: Option<PathBuf>,
    /// The Python virtual environment of this process.
    pub(crate) virtual_environment: Option<PathBuf>,
}

#[cfg(feature = "nccl")]
impl NcclPlaces {
    pub(crate) fn from_environment() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Self { given: path(variables::NCCL), virtual_environment: path("VIRTUAL_ENV") }
    }
}

/// Returns all `UNISONO_…` variables in the environment with their values, for printing. The value of the secret is left out.
pub fn settings() -> impl Iterator<Item = (String, String)> {
    let mut settings: Vec<_> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| name.starts_with(variables::PREFIX))
        .map(|(name, value)| if name == SECRET { (name, "…".to_owned()) } else { (name, value) })
        .collect();
    settings.sort();
    settings.into_iter()
}

/// Returns whether NCCL is configured to let several ranks share a GPU.
#[cfg(feature = "nccl")]
pub(crate) fn nccl_may_share_a_gpu() -> bool {
    std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1")
}

/// Returns an environment of these variables.
#[cfg(test)]
fn environment(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    move |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Config> {
        Config::read(|name| environment(pairs)(name).ok_or(VarError::NotPresent))
    }

    #[test]
    fn empty_environment_gives_the_defaults() {
        let constants = Constants::Measured { kept_in: None };
        assert_eq!(read(&[]).unwrap(), Config { constants, ..Config::default() });
    }

    #[test]
    fn settings_are_parsed() {
        let config = read(&[(TIMEOUT, "1.5"), (NODES, "3, 1"), (ALGORITHM, "ring")]).unwrap();
        assert_eq!(config.timeout, Duration::from_millis(1500));
        assert_eq!(config.nodes, Some(Topology::from_node_sizes(&[3, 1])));
        assert_eq!(config.algorithm.as_deref(), Some("ring"));
        let chaos = read(&[(CHAOS, "seed=7,lose=0.5")]).unwrap().chaos;
        assert_eq!(chaos, Some(Chaos { seed: 7, delay_us: 0, lose: 0.5 }));
    }

    #[test]
    fn empty_flight_recorder_folder_is_unset() {
        let flight_dir = |folder| read(&[(FLIGHT_DIR, folder)]).unwrap().flight_dir;
        assert_eq!((flight_dir(""), flight_dir("records")), (None, Some("records".into())));
    }

    #[test]
    fn first_timeout_is_at_least_the_timeout() {
        let first = |pairs: &[_]| read(pairs).unwrap().first_timeout;
        assert_eq!(first(&[(TIMEOUT, "5")]), DEFAULT_FIRST_TIMEOUT);
        assert_eq!(first(&[(TIMEOUT, "5000")]), Duration::from_secs(5000));
        assert_eq!(first(&[(TIMEOUT, "5000"), (FIRST_TIMEOUT, "7")]), Duration::from_secs(7));
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        for (name, value) in [
            (TIMEOUT, "soon"),
            (TIMEOUT, "-1"),
            (WARN, "0"),
            (FIRST_TIMEOUT, "1e-10"),
            (QUIET_TIMEOUT, "inf"),
            (NODES, "2,0"),
            (NODES, ""),
            (NODES, "99999999999"),
            (SEGMENT_BYTES, "100"),
            (TRANSPORT, "tcp"),
            (WARNINGS, "some"),
            (CHAOS, "lose=2"),
            (CHAOS, "seed=7;lose=0"),
            (WATCHDOG, "no"),
            (TRACE, ""),
            (METRICS, ""),
            (METRICS, ":9400"),
            (METRICS, "localhost:"),
            (METRICS, "localhost:0"),
            (METRICS, "localhost:70000"),
            (METRICS, "localhost:http"),
        ] {
            let message = read(&[(name, value)]).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(value), "{message}");
        }
    }
}
