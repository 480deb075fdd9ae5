//! Parses the command line.

use unisono::Choice;

/// A kind of check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The facts of this machine.
    Facts,
    /// Every type and reduction, at several sizes, compared with the host.
    Correct,
    /// Several all-reduces at once, concurrent with other work of the GPU.
    InFlight,
    /// The copies of an all-reduce through the host, compared with plain copies.
    Copies,
    /// Batches that are copied to the GPU while it computes.
    Prefetch,
    /// Unisono's call, compared with NCCL's.
    Calls,
    /// Other collectives, on arrays that another library has allocated.
    Operations,
    /// Ranks whose calls differ.
    Differ,
}

const KINDS: [(&str, Kind); 8] = [
    ("facts", Kind::Facts),
    ("correct", Kind::Correct),
    ("in-flight", Kind::InFlight),
    ("copies", Kind::Copies),
    ("prefetch", Kind::Prefetch),
    ("calls", Kind::Calls),
    ("operations", Kind::Operations),
    ("differ", Kind::Differ),
];

/// One check.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) kind: Kind,
    /// The name in the output line.
    pub(crate) name: String,
    /// The algorithm choice for arrays on GPUs.
    pub(crate) choice: Choice,
    /// The method that must have been used, or the check fails.
    pub(crate) must_run: Option<String>,
    /// The size of the largest arrays.
    pub(crate) largest_bytes: usize,
}

/// Large enough that each of two ranks of a node has more segments than slots of pinned memory.
const LARGEST_MIB: usize = 36;

impl Settings {
    /// Parses the command line.
    ///
    /// # Errors
    /// The invalid argument and the expected one.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let names = KINDS.map(|(name, _)| name).join(", ");
        let asked = arguments.next().unwrap_or_default();
        let found = KINDS.iter().find(|(name, _)| *name == asked);
        let (_, kind) = found.ok_or_else(|| format!("unknown check {asked:?}; expected one of {names}"))?;
        let name = arguments.next().ok_or("a name is expected after the check")?;
        let mut settings = Self {
            kind: *kind,
            name,
            choice: Choice::Auto,
            must_run: None,
            largest_bytes: LARGEST_MIB << 20,
        };
        while let Some(option) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
            match &*option {
                "--algorithm" => settings.choice = value.parse().map_err(|error| format!("{error}"))?,
                "--must-run" => settings.must_run = Some(value),
                "--largest-mib" => {
                    let bytes = value.parse().ok().and_then(|mib: usize| mib.checked_mul(1 << 20));
                    let expected = || format!("--largest-mib must be a number of MiB, got `{value}`");
                    settings.largest_bytes = bytes.ok_or_else(expected)?;
                }
                _ => {
                    return Err(format!(
                        "unknown option {option}; expected --algorithm, --must-run or --largest-mib"
                    ));
                }
            }
        }
        Ok(settings)
    }
}
