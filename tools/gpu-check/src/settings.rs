//! What is to be checked, from the command line.

use unisono::Choice;

/// A kind of check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What is on this machine.
    Facts,
    /// Every type and reduction, at several sizes, against the host.
    Correct,
    /// Several all-reduces at once, between other work of the GPU's.
    InFlight,
    /// The copies of an all-reduce through the host, beside plain ones.
    Copies,
    /// Our call, beside NCCL's.
    Calls,
    /// The same with one rank.
    CallsAlone,
}

const KINDS: [(&str, Kind); 6] = [
    ("facts", Kind::Facts),
    ("correct", Kind::Correct),
    ("in-flight", Kind::InFlight),
    ("copies", Kind::Copies),
    ("calls", Kind::Calls),
    ("calls-alone", Kind::CallsAlone),
];

/// One check.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) kind: Kind,
    /// What the line calls it.
    pub(crate) name: String,
    /// What is chosen for arrays on GPUs.
    pub(crate) choice: Choice,
    /// What must have carried out calls of it, or it has shown nothing.
    pub(crate) must_run: Option<String>,
    /// How large arrays become.
    pub(crate) largest_bytes: usize,
}

/// Enough for two ranks of a node to have more pieces each than there is pinned memory for.
const LARGEST_MIB: usize = 36;

impl Settings {
    /// # Errors
    /// What makes no sense, and what is expected.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let names = KINDS.map(|(name, _)| name).join(", ");
        let asked = arguments.next().unwrap_or_default();
        let found = KINDS.iter().find(|(name, _)| *name == asked);
        let (_, kind) = found.ok_or_else(|| format!("{asked:?} is no kind of check; there are {names}"))?;
        let name = arguments.next().ok_or("after the kind, a name is expected")?;
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
                    let mib: usize =
                        value.parse().map_err(|error| format!("--largest-mib {value}: {error}"))?;
                    settings.largest_bytes = mib << 20;
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
