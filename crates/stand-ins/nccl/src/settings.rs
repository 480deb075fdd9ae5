//! The only place that reads the environment.

use std::ffi::c_int;
use std::sync::LazyLock;
use std::time::Duration;

pub(crate) struct Settings {
    /// The version in the format of `ncclGetVersion`: 23007 is 2.30.7.
    pub(crate) version: c_int,
    /// The time to wait for another rank.
    pub(crate) deadline: Duration,
    pub(crate) shares_devices: bool,
    /// The rank for which no communicator is created.
    pub(crate) refused: Option<c_int>,
}

/// Read once, on first use of the library.
pub(crate) static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
    let version = variable("STAND_IN_NCCL_VERSION", parse_version).unwrap_or(23_007);
    let deadline = variable("STAND_IN_NCCL_DEADLINE_MS", |text| text.parse().ok()).unwrap_or(10_000);
    let is_enabled = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1");
    Settings {
        version,
        deadline: Duration::from_millis(deadline),
        shares_devices: is_enabled && version >= 23_003,
        refused: variable("STAND_IN_NCCL_REFUSED_RANK", |text| text.parse().ok()),
    }
});

/// Parses a variable. An invalid one ends the process: a test would prove nothing if its setting were ignored.
fn variable<T>(name: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let Some(value) = parse(text.trim()) else { panic!("{name} is {text:?}, which is invalid") };
    Some(value)
}

fn parse_version(text: &str) -> Option<c_int> {
    let parts: Vec<c_int> = text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [major, minor, patch] = parts[..] else { return None };
    Some(major * 10_000 + minor * 100 + patch)
}
