//! The command line.

use unisono::Choice;

use crate::{CHECKS, Check};

/// Checks and measures arrays on GPUs.
#[derive(Debug, clap::Parser)]
pub(crate) struct Settings {
    #[arg(value_parser = check)]
    pub(crate) check: Check,
    /// The name in the output line.
    pub(crate) name: String,
    /// The algorithm choice for arrays on GPUs.
    #[arg(long = "algorithm", default_value = "auto")]
    pub(crate) choice: Choice,
    /// The method that must have been used, or the check fails.
    #[arg(long)]
    pub(crate) must_run: Option<String>,
    /// The size of the largest arrays. By default each of two ranks of a node has more segments than slots of pinned memory.
    #[arg(long = "largest-mib", value_name = "MIB", default_value = "36", value_parser = bytes)]
    pub(crate) largest_bytes: usize,
}

fn check(name: &str) -> Result<Check, String> {
    let found = CHECKS.into_iter().find(|(known, _)| *known == name);
    let known = || format!("expected one of {}", CHECKS.map(|(known, _)| known).join(", "));
    found.map(|(_, check)| check).ok_or_else(known)
}

fn bytes(mib: &str) -> Result<usize, String> {
    let bytes = mib.parse().ok().and_then(|mib: usize| mib.checked_mul(1 << 20));
    bytes.ok_or_else(|| "expected a number of MiB".to_owned())
}
