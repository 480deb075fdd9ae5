//! The only place that reads the environment.

use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

pub(crate) struct Settings {
    /// The physical ordinals of the devices that this process sees.
    pub(crate) devices: Vec<u8>,
    pub(crate) seed: u64,
    /// The mean delay before an operation.
    pub(crate) delay: Duration,
    /// The additional time per byte of a copy.
    pub(crate) seconds_per_byte: f64,
    pub(crate) memory_bytes: usize,
}

/// Read once, on first use of the driver.
pub(crate) static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
    let all: u8 = number("STAND_IN_DEVICES").unwrap_or(1);
    Settings {
        devices: match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(list) => visible(&list, all),
            Err(_) => (0..all).collect(),
        },
        seed: number("STAND_IN_SEED").unwrap_or(0),
        delay: Duration::from_micros(number("STAND_IN_DELAY_US").unwrap_or(25)),
        seconds_per_byte: number::<f64>("STAND_IN_GB_PER_S").map_or(0.0, |rate| 1e-9 / rate),
        memory_bytes: number::<usize>("STAND_IN_MEMORY_MB").unwrap_or(4096) << 20,
    }
});

/// Parses a variable as a number. An invalid one ends the process: a test would prove nothing if its setting were ignored.
fn number<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let Ok(number) = text.trim().parse() else { panic!("{name} is {text:?}, not a number") };
    Some(number)
}

/// Parsed as the driver does: the list ends before the first invalid ordinal, and is empty if one occurs twice.
fn visible(list: &str, all: u8) -> Vec<u8> {
    let mut devices = Vec::new();
    for ordinal in list.split(',').map_while(|entry| entry.trim().parse().ok().filter(|&one| one < all)) {
        if devices.contains(&ordinal) {
            return Vec::new();
        }
        devices.push(ordinal);
    }
    devices
}
