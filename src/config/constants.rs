//! The source of the constants of the cost model.

use std::env::VarError;
use std::path::PathBuf;

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
    pub(super) fn set_to(
        value: Option<String>,
        variable: &impl Fn(&str) -> Result<String, VarError>,
    ) -> Self {
        // The XDG specification ignores empty and relative paths. They would denote a folder in whichever one the program runs.
        let absolute = |name: &str| variable(name).ok().map(PathBuf::from).filter(|path| path.is_absolute());
        let caches =
            || absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        match value.filter(|value| value != "auto") {
            None => Self::Measured { kept_in: caches().map(|caches| caches.join("unisono")) },
            Some(value) if value == "default" => Self::Default,
            Some(file) => Self::File(file.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment;

    fn kept_in(pairs: &[(&str, &str)]) -> Option<PathBuf> {
        let variable = |name: &str| environment(pairs)(name).ok_or(VarError::NotPresent);
        match Constants::set_to(None, &variable) {
            Constants::Measured { kept_in } => kept_in,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn empty_and_relative_cache_folders_are_ignored() {
        let home = ("HOME", "/home/one");
        assert_eq!(kept_in(&[("XDG_CACHE_HOME", "/caches"), home]), Some("/caches/unisono".into()));
        for value in ["", "caches", "./caches"] {
            let kept_in = kept_in(&[("XDG_CACHE_HOME", value), home]);
            assert_eq!(kept_in, Some("/home/one/.cache/unisono".into()), "{value:?}");
        }
        assert_eq!(kept_in(&[("HOME", "")]), None);
    }
}
