//! The check at start-up that all ranks have compatible programs and settings.

use serde::{Deserialize, Serialize};
use unisono_collectives::Operation;
use xxhash_rust::xxh3::xxh3_64;

use super::bootstrap::{Bootstrap, gather};
use super::header::Header;
use super::shared::board::Board;
use crate::config::Config;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;
use crate::method::Method;
use crate::record::BARRIER_NAME;
use crate::system;

/// The key of the program's version and the layout of its messages.
const PROGRAM: &str = "unisono";
/// The key of the library that carries messages between nodes.
const LIBRARY: &str = "MPI";
/// The key of the error in the settings of a rank.
const ERROR: &str = "error";
/// The number of ranks that an error lists.
const MAX_LISTED: usize = 8;

/// Compares the facts of all ranks; returns their common settings and a warning, if any. All ranks call it, including one with
/// invalid settings, since the others wait for it. `library` is the version of MPI, if these ranks use one.
///
/// If all ranks agree, it costs one all-gather of a number.
///
/// # Errors
/// On all ranks: [`Error::Setting`] for settings that are invalid or differ, [`Error::Launch`] for programs that differ.
pub(super) fn agree(
    bootstrap: &mut dyn Bootstrap,
    config: Result<Config>,
    library: &str,
) -> Result<(Config, Option<String>)> {
    let mut own = Facts::own(&config, library);
    let digests = gather(bootstrap, &own.digest())?;
    if digests.iter().all(|&digest| digest == digests[0]) {
        return config.map(|config| (config, None));
    }
    own.host = system::host();
    let warning = validate(&gather(bootstrap, &own)?)?;
    config.map(|config| (config, warning))
}

/// Validates that these ranks can work together. Returns a warning, if any.
fn validate(all: &[Facts]) -> Result<Option<String>> {
    if let Some(error) = all.iter().map(|facts| facts.value(ERROR)).find(|error| !error.is_empty()) {
        let ranks = list_ranks(all, |facts| facts.value(ERROR) == error);
        return Err(Error::Setting(format!("on {ranks}: {error}")));
    }
    if let Some(differing) = differing(all, PROGRAM) {
        return Err(Error::Launch(format!("{differing}: start the same program on all nodes")));
    }
    let settings = all[0].values.iter().filter(|(name, _)| name != LIBRARY);
    let differing_settings: Vec<_> = settings.filter_map(|(name, _)| differing(all, name)).collect();
    if !differing_settings.is_empty() {
        return Err(Error::Setting(format!(
            "{}: all ranks must have the same value; pass it through the launcher (Open MPI: mpirun -x NAME, MPICH: mpirun -genv \
             NAME VALUE)",
            differing_settings.join("; ")
        )));
    }
    Ok(differing(all, LIBRARY).map(|differing| {
        format!("{differing}: MPI does not guarantee that different versions work together; install the same version on all nodes")
    }))
}

/// The facts that a rank reports about itself.
#[derive(Debug, Serialize, Deserialize)]
struct Facts {
    values: Vec<(String, String)>,
    host: String,
}

impl Facts {
    fn own(config: &Result<Config>, library: &str) -> Self {
        let program = format!("{} (messages {:08x})", env!("CARGO_PKG_VERSION"), protocol() as u32);
        let mut values = vec![(PROGRAM.to_owned(), program), (LIBRARY.to_owned(), library.to_owned())];
        match config {
            Ok(config) => {
                let settings = config.alike().into_iter();
                values.extend(settings.map(|(name, value)| (name.to_owned(), value)));
            }
            Err(error) => values.push((ERROR.to_owned(), error.to_string())),
        }
        Self { values, host: String::new() }
    }

    fn digest(&self) -> u64 {
        xxh3_64(format!("{:?}", self.values).as_bytes())
    }

    fn value(&self, name: &str) -> &str {
        self.values.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
}

fn differing(all: &[Facts], name: &str) -> Option<String> {
    let mut values: Vec<_> = all.iter().map(|facts| facts.value(name)).collect();
    values.sort_unstable();
    values.dedup();
    if values.len() < 2 {
        return None;
    }
    // The value of rank 0 comes first.
    values.sort_by_key(|value| all.iter().position(|facts| facts.value(name) == *value));
    let described = values.iter().map(|&value| {
        let shown = if value.is_empty() { "not set" } else { value };
        format!("{shown} on {}", list_ranks(all, |facts| facts.value(name) == value))
    });
    Some(format!("{name} is {}", described.collect::<Vec<_>>().join(", and ")))
}

/// Lists ranks with their machines: "ranks 0, 2 (a), rank 5 (b)".
fn list_ranks(all: &[Facts], is_one: impl Fn(&Facts) -> bool) -> String {
    let mut hosts: Vec<(&str, Vec<String>)> = Vec::new();
    let ranks: Vec<_> = all.iter().enumerate().filter(|(_, facts)| is_one(facts)).collect();
    for (rank, facts) in ranks.iter().take(MAX_LISTED) {
        match hosts.iter_mut().find(|(host, _)| *host == facts.host) {
            Some((_, of_host)) => of_host.push(rank.to_string()),
            None => hosts.push((&facts.host, vec![rank.to_string()])),
        }
    }
    let of_host = |(host, ranks): &(&str, Vec<String>)| {
        let plural = if ranks.len() == 1 { "" } else { "s" };
        format!("rank{plural} {} ({host})", ranks.join(", "))
    };
    let mut text = hosts.iter().map(of_host).collect::<Vec<_>>().join(", ");
    if ranks.len() > MAX_LISTED {
        text += &format!(" and {} more", ranks.len() - MAX_LISTED);
    }
    text
}

/// Returns a hash of the message and board layouts and of the meaning of codes: ranks with different hashes are
/// incompatible.
fn protocol() -> u64 {
    let method = Method::ALL.map(Method::name);
    let names =
        DType::ALL.map(DType::name).into_iter().chain(ReduceOp::ALL.map(ReduceOp::name)).chain(method);
    let operations = Operation::all(0).map(Operation::name);
    let names: Vec<_> = names.chain(operations).chain([BARRIER_NAME]).collect();
    let sizes = [size_of::<Header>(), Board::size_bytes(2), Board::size_bytes(3), size_of::<usize>()];
    // Stable across compilers and versions, unlike the standard library's hash.
    xxh3_64(format!("{sizes:?} {names:?}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(host: &str, transport: &str) -> Facts {
        let config = Config { algorithm: Some("ring".into()), ..Config::default() };
        let mut facts = Facts::own(&Ok(config), "MPI of today");
        facts.host = host.to_owned();
        let value = facts.values.iter_mut().find(|(name, _)| name == "UNISONO_TRANSPORT").unwrap();
        value.1 = transport.to_owned();
        facts
    }

    #[test]
    fn differing_values_are_listed_with_their_ranks() {
        let all = [facts("a", "auto"), facts("a", "mpi"), facts("b", "auto"), facts("a", "auto")];
        assert_eq!(differing(&all, "UNISONO_ALGORITHM"), None);
        let described = differing(&all, "UNISONO_TRANSPORT").unwrap();
        let expected = "UNISONO_TRANSPORT is auto on ranks 0, 3 (a), rank 2 (b), and mpi on rank 1 (a)";
        assert_eq!(described, expected);
    }

    #[test]
    fn other_programs_are_refused_and_other_libraries_are_warned_about() {
        let with = |name: &str, value: &str| {
            let mut facts = facts("b", "auto");
            facts.values.iter_mut().find(|(key, _)| key == name).unwrap().1 = value.to_owned();
            validate(&[self::facts("a", "auto"), facts])
        };
        let Err(Error::Launch(refused)) = with(PROGRAM, "0.0.9 (messages 12345678)") else {
            panic!("another version is refused")
        };
        assert!(refused.starts_with(concat!("unisono is ", env!("CARGO_PKG_VERSION"), " (messages ")));
        assert!(refused.contains("and 0.0.9 (messages 12345678) on rank 1 (b)"), "{refused}");
        let warning = with(LIBRARY, "MPI of yesterday").unwrap().unwrap();
        assert!(warning.contains("MPI of yesterday on rank 1 (b)"), "{warning}");
        assert!(matches!(with("UNISONO_SEGMENT_BYTES", "64"), Err(Error::Setting(_))));
        assert!(validate(&[facts("a", "auto"), facts("b", "auto")]).unwrap().is_none());
    }

    #[test]
    fn long_lists_of_ranks_are_shortened() {
        let all: Vec<_> = (0..12).map(|rank| facts("a", if rank == 5 { "" } else { "mpi" })).collect();
        let described = differing(&all, "UNISONO_TRANSPORT").unwrap();
        assert!(described.contains("7, 8 (a) and 3 more, and not set on rank 5 (a)"), "{described}");
    }

    #[test]
    fn equal_ranks_have_equal_digests() {
        let (one, other) = (Config::default(), Config { segment_bytes: 64, ..Config::default() });
        let digest = |config: &Config| Facts::own(&Ok(config.clone()), "").digest();
        assert_eq!(digest(&one), digest(&one));
        assert_ne!(digest(&one), digest(&other));
    }
}
