//! The constants of the cost model that a new world uses. All ranks have them from rank 0, since all must choose the same algorithms.

use std::path::Path;

#[cfg(feature = "tuning")]
use super::first_use::World;
use super::rank_0::{as_rank_0_has, text_of_rank_0};
use crate::communicator::Communicator;
use crate::config::{Config, Constants};
use crate::error::{Error, Result};
use crate::transport::Transport;
use crate::tuning::Tuning;

/// What a rank knows of the constants of a new world.
enum Known {
    /// The text of a file; empty for those of the library.
    Text(String),
    /// They are to be measured.
    #[cfg(feature = "tuning")]
    No(World),
}

impl Known {
    /// What rank 0 knows, with so many cores on its node.
    fn of(transport: &Transport, cores: usize, config: &Config) -> Result<Self> {
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
    fn measured(transport: &Transport, cores: usize, config: &Config, kept_in: Option<&Path>) -> Self {
        let topology = transport.topology();
        // With declared nodes or injected faults, ranks do not reach each other as the machine would let them.
        let is_plain = topology.nodes() == 1 && config.nodes.is_none() && config.chaos.is_none();
        let world = World::new(transport.name(), topology.ranks(), cores, kept_in);
        match world.filter(|_| is_plain) {
            None => Self::Text(String::new()),
            Some(world) => world.known().map_or(Self::No(world), Self::Text),
        }
    }

    #[cfg(not(feature = "tuning"))]
    fn measured(_: &Transport, _: usize, _: &Config, _: Option<&Path>) -> Self {
        Self::Text(String::new())
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
        Known::No(constants) => measured_by_threads(&constants, world.len())?,
    };
    let tuning = parsed(&text).map_err(wrong)?;
    world.iter_mut().for_each(|comm| comm.set_tuning(&tuning));
    Ok(())
}

/// The ranks of a new world have no threads yet: others measure for them.
#[cfg(feature = "tuning")]
fn measured_by_threads(world: &World, ranks: usize) -> Result<String> {
    let ranks = Communicator::of_threads(Transport::threads(ranks)?, &Config::default())?;
    std::thread::scope(|scope| {
        let measure = |mut comm| scope.spawn(move || world.measure(&mut comm));
        let started: Vec<_> = ranks.into_iter().map(measure).collect();
        let texts = started.into_iter().map(|rank| rank.join().expect("measuring does not panic"));
        texts.collect::<Result<Vec<_>>>().map(|mut texts| texts.swap_remove(0))
    })
}

/// Sets the constants that rank 0 uses, and the core count of its node. Called by all ranks of a new world.
pub(crate) fn agree(comm: &mut Communicator, config: &Config) -> Result<()> {
    let mut cores = [comm.transport_of_engine().node_cores() as u64];
    as_rank_0_has(comm, &mut cores)?;
    let cores = cores[0] as usize;
    let mut here = Ok(Known::Text(String::new()));
    if comm.rank() == 0 {
        here = Known::of(comm.transport_of_engine(), cores, config);
    }
    let mut is_error = [u8::from(here.is_err())];
    as_rank_0_has(comm, &mut is_error)?;
    if is_error == [1] {
        let why = here.err().map_or_else(String::new, |error| error.to_string());
        return Err(Error::Setting(text_of_rank_0(comm, &why)?));
    }
    let text = text(comm, here?, cores)?;
    comm.set_constants((parsed(&text).map_err(wrong)?, cores));
    Ok(())
}

/// The text that rank 0 knows, or all ranks measure.
#[cfg(feature = "tuning")]
fn text(comm: &mut Communicator, here: Known, cores: usize) -> Result<String> {
    let mut is_known = [u8::from(matches!(here, Known::Text(_)))];
    as_rank_0_has(comm, &mut is_known)?;
    match (here, is_known) {
        (Known::No(world), _) => world.measure(comm),
        (Known::Text(text), [1]) => text_of_rank_0(comm, &text),
        (Known::Text(_), _) => {
            let world = World::new(comm.transport(), comm.ranks(), cores, None);
            world.expect("rank 0 has the same").measure(comm)
        }
    }
}

#[cfg(not(feature = "tuning"))]
fn text(comm: &mut Communicator, Known::Text(text): Known, _: usize) -> Result<String> {
    text_of_rank_0(comm, &text)
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
