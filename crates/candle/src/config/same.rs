//! Checks that all ranks make the same run: each may have been started by a command of its own, on a machine of its own.

use serde_json::Value;
use unisono::Communicator;
use unisono_train::internals::broadcast;
use unisono_train::{TrainError, agree};

use super::Config;
use super::check::refuse;

/// The options that may differ: where a rank finds its data and how it prepares them, and what only rank 0 uses.
const OF_A_RANK: [&str; 11] = [
    "checkpoint-dir",
    "data",
    "data-cache",
    "data-token-file",
    "initial",
    "input-memory",
    "input-threads",
    "log-dir",
    "prefetch",
    "snapshot",
    "snapshot-compression",
];
/// The entries of the description of a run that all ranks share, with their content. Its location may differ.
const OF_DATA: [(&str, &str); 3] = [
    ("kind", "kinds of samples"),
    ("schema", "names or statistics of classes, columns or images"),
    ("fingerprint", "samples"),
];

impl Config {
    /// Checks that all ranks have the options of rank 0. The error names an option that differs. Called by all ranks.
    pub(super) fn check_options_of_ranks(&self, comm: &mut Communicator) -> Result<(), TrainError> {
        let own = agree(comm, self.values())?;
        let first: Value = broadcast(comm, &own)?;
        let mut options = own.as_object().into_iter().flatten();
        let other =
            options.find(|(name, value)| !OF_A_RANK.contains(&name.as_str()) && **value != first[*name]);
        let same = other.map_or(Ok(()), |(name, value)| {
            let (own, first) = (given(name, value), given(name, &first[name]));
            refuse(format!("rank {} has {own}, and rank 0 {first}: use the same on every rank", comm.rank()))
        });
        agree(comm, same)
    }

    /// Checks that all ranks have the data of rank 0, by their descriptions. Called by all ranks.
    pub(super) fn check_data_of_ranks(&self, comm: &mut Communicator, own: &Value) -> Result<(), TrainError> {
        let first: Value = broadcast(comm, own)?;
        let other = OF_DATA.into_iter().find(|(entry, _)| own[*entry] != first[*entry]);
        let same = other.map_or(Ok(()), |(_, what)| {
            let (rank, data) = (comm.rank(), &self.data);
            refuse(format!(
                "the {what} of {data} on rank {rank} are not those of rank 0: use the same data on every rank"
            ))
        });
        agree(comm, same)
    }
}

fn given(name: &str, value: &Value) -> String {
    match value {
        Value::Null => format!("no --{name}"),
        Value::String(text) => format!("--{name} {text}"),
        value => match value.as_f64().filter(|_| value.is_f64()).map(|number| (number, number as f32)) {
            // An `f32` has other digits as an `f64` than those that were given.
            Some((number, short)) if f64::from(short) == number => format!("--{name} {short}"),
            _ => format!("--{name} {value}"),
        },
    }
}
