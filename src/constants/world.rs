//! Sets the constants of the cost model in a new world. Rank 0 broadcasts them, since all ranks must select the same algorithms.

use std::path::Path;
#[cfg(feature = "tuning")]
use std::path::PathBuf;

#[cfg(feature = "tuning")]
use super::first_use::World;
use super::rank_0::{as_rank_0_has, text_of_rank_0};
use crate::communicator::Communicator;
use crate::config::{Config, Constants};
use crate::error::{Error, Result};
use crate::transport::Fabric;
use crate::tuning::Tuning;

/// The constants of a new world, as far as rank 0 knows them.
enum Known {
    /// The text of a tuning file; empty for the default constants.
    Text(String),
    /// No file contains the constants. All ranks must measure them.
    #[cfg(feature = "tuning")]
    Unmeasured(World),
}

impl Known {
    /// Returns the constants that the settings name, for a node with this many cores.
    fn of(transport: &Fabric, cores: usize, config: &Config) -> Result<Self> {
        match &config.constants {
            Constants::Default => Ok(Self::Text(String::new())),
            // Validated here, before any rank uses it.
            Constants::File(file) => {
                let text = std::fs::read_to_string(file);
                let text =
                    text.map_err(|error| wrong(format!("cannot read `{}`: {error}", file.display())))?;
                parsed(&text).map_err(|error| wrong(format!("`{}`, {error}", file.display())))?;
                Ok(Self::Text(text))
            }
            Constants::Measured { kept_in } => {
                Ok(Self::measured(transport, cores, config, kept_in.as_deref()))
            }
        }
    }

    #[cfg(feature = "tuning")]
    fn measured(transport: &Fabric, cores: usize, config: &Config, kept_in: Option<&Path>) -> Self {
        let default = Self::Text(String::new());
        let Some(world) = cached(transport, cores, config, kept_in) else { return default };
        match world.known() {
            Some(text) => Self::Text(text),
            // Between nodes it may take minutes.
            None if transport.topology().nodes() == 1 && world.is_measurable() => Self::Unmeasured(world),
            None => default,
        }
    }

    #[cfg(not(feature = "tuning"))]
    fn measured(_: &Fabric, _: usize, _: &Config, _: Option<&Path>) -> Self {
        Self::Text(String::new())
    }
}

/// The world whose constants are cached in a folder. Declared nodes and injected faults change the times of messages, so they are not.
#[cfg(feature = "tuning")]
fn cached(transport: &Fabric, cores: usize, config: &Config, kept_in: Option<&Path>) -> Option<World> {
    let is_plain = config.nodes.is_none() && config.chaos.is_none();
    let world = World::new(transport.name(), transport.topology().ranks(), cores, kept_in);
    world.filter(|_| is_plain)
}

/// Returns the file from which the next world like this one takes its constants: that of `UNISONO_TUNING`, or this user's cache of the
/// machine. `None` if there is none: with `UNISONO_TUNING=default`, with declared nodes, or without a folder for caches. Rank 0's is used.
#[cfg(feature = "tuning")]
pub fn file(comm: &mut Communicator) -> Option<PathBuf> {
    let config = comm.config().clone();
    let transport = comm.transport_of_engine();
    match &config.constants {
        Constants::Default => None,
        Constants::File(file) => Some(file.clone()),
        Constants::Measured { kept_in } => {
            cached(transport, transport.node_cores(), &config, kept_in.as_deref())?.file()
        }
    }
}

/// Sets the constants of a new world of threads.
pub(crate) fn of_threads(world: &mut [Communicator], config: &Config) -> Result<()> {
    let Some(first) = world.first_mut() else { return Ok(()) };
    let cores = first.transport_of_engine().node_cores();
    #[cfg_attr(
        not(feature = "tuning"),
        allow(clippy::infallible_destructuring_match, reason = "with the feature, there are two variants")
    )]
    let text = match Known::of(first.transport_of_engine(), cores, config)? {
        Known::Text(text) => text,
        #[cfg(feature = "tuning")]
        Known::Unmeasured(constants) => measured_by_threads(&constants, world.len())?,
    };
    let tuning = parsed(&text).map_err(wrong)?;
    world.iter_mut().for_each(|comm| comm.set_tuning(&tuning));
    Ok(())
}

/// Measures on temporary threads, because the ranks of the new world do not have theirs yet.
#[cfg(feature = "tuning")]
fn measured_by_threads(world: &World, ranks: usize) -> Result<String> {
    let ranks = Communicator::of_threads(Fabric::threads(ranks)?, &Config::default())?;
    std::thread::scope(|scope| {
        let measure = |mut comm| scope.spawn(move || world.measure(&mut comm));
        let started: Vec<_> = ranks.into_iter().map(measure).collect();
        let texts = started.into_iter().map(|rank| rank.join().expect("measuring does not panic"));
        texts.collect::<Result<Vec<_>>>().map(|mut texts| texts.swap_remove(0))
    })
}

/// The state of rank 0 in the header that it broadcasts: its constants are invalid, known, or to be measured by all ranks.
const INVALID: u64 = 0;
const KNOWN: u64 = 1;
#[cfg(feature = "tuning")]
const UNMEASURED: u64 = 2;

/// Sets rank 0's constants, and the core count of its node. Called by all ranks of a new world.
pub(crate) fn agree(comm: &mut Communicator, config: &Config) -> Result<()> {
    let cores = comm.transport_of_engine().node_cores();
    let here = match comm.rank() {
        0 => Known::of(comm.transport_of_engine(), cores, config),
        _ => Ok(Known::Text(String::new())),
    };
    let state = match &here {
        Err(_) => INVALID,
        Ok(Known::Text(_)) => KNOWN,
        #[cfg(feature = "tuning")]
        Ok(Known::Unmeasured(_)) => UNMEASURED,
    };
    let mut header = [cores as u64, state];
    as_rank_0_has(comm, &mut header)?;
    let cores = header[0] as usize;
    let text = match (here, header[1]) {
        (Err(error), _) => return Err(Error::Setting(text_of_rank_0(comm, &error.to_string())?)),
        (_, INVALID) => return Err(Error::Setting(text_of_rank_0(comm, "")?)),
        #[cfg(feature = "tuning")]
        (Ok(Known::Unmeasured(world)), _) => world.measure(comm)?,
        #[cfg(feature = "tuning")]
        (_, UNMEASURED) => {
            let world = World::new(comm.transport(), comm.ranks(), cores, None);
            world.expect("rank 0 has the same").measure(comm)?
        }
        (Ok(Known::Text(text)), _) => text_of_rank_0(comm, &text)?,
    };
    comm.set_constants((parsed(&text).map_err(wrong)?, cores));
    Ok(())
}

fn wrong(what: String) -> Error {
    Error::Setting(format!("UNISONO_TUNING: {what}"))
}

fn parsed(text: &str) -> std::result::Result<Tuning, String> {
    if text.is_empty() {
        return Ok(Tuning::default());
    }
    #[cfg(feature = "tuning")]
    return text.parse().map_err(|error: crate::tuning::InvalidFile| error.to_string());
    #[cfg(not(feature = "tuning"))]
    Err("this program was built without the feature `tuning`, and reads no file".to_owned())
}
