//! The source of the constants of the cost model.

use std::env::VarError;
use std::path::PathBuf;

/// The keywords accepted in place of a file name.
const AUTO: &str = "auto";
const DEFAULT: &str = "default";
/// The valid values of [`UNISONO_TUNING`](super::TUNING), for error messages.
pub(super) const EXPECTED: &str = "auto, default, or a file that unisono tune wrote";

/// The source of the constants of the cost model; rank 0's setting applies to all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Constants {
    /// The default constants, identical on every machine.
    #[default]
    Default,
    /// Measured at the first use on a machine, and stored in this folder. Without a folder, every process measures them.
    Measured { kept_in: Option<PathBuf> },
    /// A file of `unisono tune`.
    File(PathBuf),
}

impl Constants {
    /// Parses the value of the variable, if it is set.
    pub(super) fn set_to(
        value: Option<String>,
        variable: &impl Fn(&str) -> Result<String, VarError>,
    ) -> Self {
        let caches = || {
            let caches = variable("XDG_CACHE_HOME").map(PathBuf::from);
            caches.or_else(|_| variable("HOME").map(|home| PathBuf::from(home).join(".cache"))).ok()
        };
        match value.filter(|value| value != AUTO) {
            None => Self::Measured { kept_in: caches().map(|caches| caches.join("unisono")) },
            Some(value) if value == DEFAULT => Self::Default,
            Some(file) => Self::File(file.into()),
        }
    }
}
