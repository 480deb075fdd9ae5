//! The table of all `UNISONO_…` variables.

use std::sync::Once;

use unisono_collectives::names::UnknownName;

/// The prefix of Unisono's variables.
pub(super) const PREFIX: &str = "UNISONO_";
/// The prefix of variables of Unisono's tests.
const OF_TESTS: &str = "UNISONO_TEST_";

/// The variables that the library and its tests read.
const KNOWN: [&str; 28] = [
    super::ALGORITHM,
    super::BOOTSTRAP_DIR,
    super::CHAOS,
    super::FIRST_TIMEOUT,
    super::FLIGHT_DIR,
    super::interfaces::INTERFACE,
    super::JOIN,
    super::KERNEL_COPIES,
    super::observe::METRICS,
    super::observe::TRACE,
    super::WATCHDOG,
    super::NCCL,
    super::NETWORK,
    super::NODES,
    super::QUIET_TIMEOUT,
    super::SECRET,
    super::SEGMENT_BYTES,
    super::TIMEOUT,
    super::TRANSPORT,
    super::TUNING,
    super::WARN,
    super::WARNINGS,
    // The variables of the library that MPI programs preload (crates/preload).
    super::preload::ACCELERATE,
    super::preload::ACCELERATE_RECORD,
    super::preload::ACCELERATE_REPORT,
    "UNISONO_FUZZ",
    // Cargo sets it for the programs that it runs: the header version of the bindings.
    "UNISONO_NCCL_HEADER",
    "UNISONO_SOAK",
];

/// Warns, once per process, about unknown `UNISONO_…` variables, most of which are misspelled. `UNISONO_WARNINGS=off` disables it.
pub fn warn_of_unread_settings() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        if std::env::var(super::WARNINGS).as_deref() != Ok("off") {
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
