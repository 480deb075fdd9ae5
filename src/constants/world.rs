//! Sets the constants of the cost model in a new world. Rank 0 broadcasts them, since all ranks must select the same algorithms.

use std::path::Path;
#[cfg(feature = "tuning")]
use std::path::PathBuf;
use std::thread::Builder;

#[cfg(feature = "tuning")]
use super::first_use::World;
use crate::communicator::Communicator;
use crate::config::{Config, Constants};
use crate::error::{Error, Result};
use crate::transport::{Fabric, gather};
use crate::tuning::Tuning;

/// Returns the text of the tuning file that the settings name for a new world, on a node with this many cores; empty for the default
/// constants. `None` if no file contains the constants, and all ranks must measure them.
fn known(transport: &Fabric, cores: usize, config: &Config) -> Result<Option<String>> {
    match &config.constants {
        Constants::Default => Ok(Some(String::new())),
        // Validated here, before any rank uses it.
        Constants::File(file) => {
            let text = std::fs::read_to_string(file);
            let text = text.map_err(|error| invalid(format!("cannot read `{}`: {error}", file.display())))?;
            Tuning::of_text(&text).map_err(|error| invalid(format!("`{}`, {error}", file.display())))?;
            Ok(Some(text))
        }
        Constants::Measured { kept_in } => Ok(cached_text(transport, cores, config, kept_in.as_deref())),
    }
}

#[cfg(feature = "tuning")]
fn cached_text(transport: &Fabric, cores: usize, config: &Config, kept_in: Option<&Path>) -> Option<String> {
    let Some(world) = cached(transport, cores, config, kept_in) else { return Some(String::new()) };
    world.cached().or_else(|| {
        // Measuring between nodes may take minutes.
        let is_measurable = transport.topology().nodes() == 1 && world.is_measurable();
        (!is_measurable).then(String::new)
    })
}

#[cfg(not(feature = "tuning"))]
fn cached_text(_: &Fabric, _: usize, _: &Config, _: Option<&Path>) -> Option<String> {
    Some(String::new())
}

/// Returns the world whose constants are cached in a folder. Declared nodes and injected faults change message times, which are not cached.
#[cfg(feature = "tuning")]
fn cached(transport: &Fabric, cores: usize, config: &Config, kept_in: Option<&Path>) -> Option<World> {
    let is_plain = config.nodes.is_none() && config.chaos.is_none();
    let world = World::new(transport.name(), transport.topology().ranks(), cores, kept_in);
    world.filter(|_| is_plain)
}

/// Returns the file from which the next world like this one reads its constants: the one in `UNISONO_TUNING`, or this user's cache for the
/// machine. `None` with `UNISONO_TUNING=default`, with declared nodes, or without a cache folder. Ranks use rank 0's file.
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

pub(crate) fn of_threads(world: &mut [Communicator], config: &Config) -> Result<()> {
    let Some(first) = world.first_mut() else { return Ok(()) };
    let cores = first.transport_of_engine().node_cores();
    let text = match known(first.transport_of_engine(), cores, config)? {
        Some(text) => text,
        None => measured_by_threads(world.len(), cores, config)?,
    };
    let tuning = Tuning::of_text(&text).map_err(invalid)?;
    world.iter_mut().for_each(|comm| comm.set_tuning(&tuning));
    Ok(())
}

/// Measures on temporary threads, because the ranks of the new world do not have theirs yet.
fn measured_by_threads(ranks: usize, cores: usize, config: &Config) -> Result<String> {
    let world = Communicator::of_threads(Fabric::threads(ranks)?, &Config::default())?;
    std::thread::scope(|scope| {
        let measure =
            |mut comm| Builder::new().spawn_scoped(scope, move || measured(&mut comm, cores, config));
        // If a thread does not start, the others get an error: its rank has left.
        let started: std::io::Result<Vec<_>> = world.into_iter().map(measure).collect();
        let started = started.map_err(|cause| {
            Error::Launch(format!(
                "cannot start {ranks} threads that measure: {cause}; see `ulimit -u` and pids.max of a container, or set \
                 UNISONO_TUNING to a file or to `default`"
            ))
        })?;
        let texts = started.into_iter().map(|rank| rank.join().expect("measuring does not panic"));
        texts.collect::<Result<Vec<_>>>().map(|mut texts| texts.swap_remove(0))
    })
}

/// Measures the constants of this world. Called by all ranks.
#[cfg(feature = "tuning")]
fn measured(comm: &mut Communicator, cores: usize, config: &Config) -> Result<String> {
    let kept_in = match &config.constants {
        Constants::Measured { kept_in } => kept_in.as_deref(),
        Constants::Default | Constants::File(_) => None,
    };
    let world = World::new(comm.transport(), comm.ranks(), cores, kept_in);
    world.expect("there are several ranks").measure(comm)
}

#[cfg(not(feature = "tuning"))]
fn measured(_: &mut Communicator, _: usize, _: &Config) -> Result<String> {
    unreachable!("the constants are known")
}

/// Sets rank 0's constants, and the core count of its node. Called by all ranks of a new world.
pub(crate) fn agree(comm: &mut Communicator, config: &Config) -> Result<()> {
    let cores = comm.transport_of_engine().node_cores();
    let own = match comm.rank() {
        0 => known(comm.transport_of_engine(), cores, config).map_err(|error| error.to_string()),
        _ => Ok(None),
    };
    let (cores, known) = gather(&mut comm.as_bootstrap("constants"), &(cores, own))?.swap_remove(0);
    let text = match known.map_err(Error::Setting)? {
        Some(text) => text,
        None => measured(comm, cores, config)?,
    };
    comm.set_constants((Tuning::of_text(&text).map_err(invalid)?, cores));
    Ok(())
}

fn invalid(what: String) -> Error {
    Error::Setting(format!("UNISONO_TUNING: {what}"))
}
