//! The table of all `UNISONO_…` variables.

use std::sync::Once;

use unisono_collectives::names::UnknownName;

pub(super) const PREFIX: &str = "UNISONO_";
const OF_TESTS: &str = "UNISONO_TEST_";

/// Defines the names of variables, and the list of all of them.
macro_rules! variables {
    ($($(#[$of_name:meta])* $vis:vis $name:ident = $text:literal,)+) => {
        $($(#[$of_name])* $vis const $name: &str = $text;)+

        /// The variables that the library and its tests read.
        const KNOWN: &[&str] = &[$($name),+];
    };
}

// `docs/environment.md` describes their values.
variables! {
    pub(super) ALGORITHM = "UNISONO_ALGORITHM",
    /// The variable with the bootstrap folder of processes launched without MPI.
    pub BOOTSTRAP_DIR = "UNISONO_BOOTSTRAP_DIR",
    pub(super) CHAOS = "UNISONO_CHAOS",
    pub(super) FIRST_TIMEOUT = "UNISONO_FIRST_TIMEOUT_S",
    pub(super) FLIGHT_DIR = "UNISONO_FLIGHT_DIR",
    pub(super) INTERFACE = "UNISONO_INTERFACE",
    /// Set to 1 by a launcher for a rank that it restarts, in a world that continues without the previous process.
    pub JOIN = "UNISONO_JOIN",
    pub(super) KERNEL_COPIES = "UNISONO_KERNEL_COPIES",
    pub(super) METRICS = "UNISONO_METRICS",
    pub(super) TRACE = "UNISONO_TRACE",
    pub(super) WATCHDOG = "UNISONO_WATCHDOG",
    pub(super) NCCL = "UNISONO_NCCL",
    pub(super) NETWORK = "UNISONO_NETWORK",
    pub(super) NODES = "UNISONO_NODES",
    pub(super) QUIET_TIMEOUT = "UNISONO_QUIET_TIMEOUT_S",
    /// The secret of a world over several machines, with which ranks authenticate. `unisono launch --hosts` sets it.
    pub SECRET = "UNISONO_SECRET",
    pub(super) SEGMENT_BYTES = "UNISONO_SEGMENT_BYTES",
    pub(super) TIMEOUT = "UNISONO_TIMEOUT_S",
    pub(super) TRANSPORT = "UNISONO_TRANSPORT",
    pub(super) TUNING = "UNISONO_TUNING",
    pub(super) WARN = "UNISONO_WARN_S",
    pub(super) WARNINGS = "UNISONO_WARNINGS",
    // The variables of the library that MPI programs preload (crates/preload).
    ACCELERATE = "UNISONO_ACCELERATE",
    ACCELERATE_RECORD = "UNISONO_ACCELERATE_RECORD",
    /// The variable that makes the library for MPI programs report at the end, if it is 1.
    pub ACCELERATE_REPORT = "UNISONO_ACCELERATE_REPORT",
    FUZZ = "UNISONO_FUZZ",
    SOAK = "UNISONO_SOAK",
}

/// Warns, once per process, about unknown `UNISONO_…` variables, most of which are misspelled. `UNISONO_WARNINGS=off` disables it.
pub fn warn_of_unread_settings() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        if std::env::var(WARNINGS).as_deref() != Ok("off") {
            let names = super::settings().map(|(name, _)| name);
            names.filter_map(|name| unread(&name)).for_each(|line| crate::system::print_line(&line));
        }
    });
}

/// Returns the warning for a variable that is never read.
fn unread(name: &str) -> Option<String> {
    if KNOWN.contains(&name) || name.starts_with(OF_TESTS) {
        return None;
    }
    let unknown = UnknownName { kind: "variable", name: name.to_owned(), known: KNOWN.to_vec() };
    let meant = unknown.meant().map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
    Some(format!("the environment variable {name} is set, and nothing reads it{meant}"))
}

/// Returns the variables that ranks on other hosts need: all `UNISONO_…` variables including the secret, and those with these
/// names.
///
/// # Errors
/// The name of a variable that is not set or not Unicode.
pub fn exported(names: &[String]) -> Result<Vec<(String, String)>, String> {
    let settings = super::settings().map(|(name, _)| name);
    let value = |name: String| std::env::var(&name).map(|value| (name.clone(), value)).map_err(|_| name);
    settings.chain(names.iter().cloned()).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variable_is_reported_with_the_most_similar_one() {
        let line = unread("UNISONO_TIMEOUT").unwrap();
        assert!(line.ends_with("nothing reads it; did you mean UNISONO_TIMEOUT_S?"), "{line}");
        assert!(unread("UNISONO_ALGORITM").unwrap().contains("did you mean UNISONO_ALGORITHM?"));
        assert_eq!(unread("UNISONO_TRANSPORT"), None);
        assert_eq!(unread("UNISONO_TEST_ROLE"), None);
    }

    /// A variable that is missing in the table would be reported as unknown.
    #[test]
    fn every_documented_variable_is_known() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/environment.md");
        let page = std::fs::read_to_string(page).expect("the page of environment variables");
        let named = page.lines().filter_map(|line| line.strip_prefix("| `UNISONO_")?.split('`').next());
        let named: Vec<_> = named.map(|name| format!("{PREFIX}{name}")).collect();
        assert!(named.len() > 10, "{named:?}");
        assert!(named.iter().all(|name| KNOWN.contains(&name.as_str())), "{named:?}");
    }
}
