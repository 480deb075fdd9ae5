//! The constants of the cost model that a new world uses. All ranks have them from rank 0, since all must choose the same algorithms.

use std::path::Path;

use unisono_collectives::{Algorithm, Operation};

use super::Communicator;
use crate::call::Call;
use crate::collective::Collective as _;
use crate::config::{Config, Constants};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::transport::Transport;
use crate::tuning::Tuning;

/// What a rank knows of the constants of a new world.
enum Known {
    /// The text of a file; empty for those of the library.
    Text(String),
    /// They are to be measured.
    #[cfg(feature = "tuning")]
    No(crate::tuning::World),
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
        let world = crate::tuning::World::new(transport.name(), topology.ranks(), cores, kept_in);
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

/// The constants of a world of threads, of which this is an end.
pub(super) fn of_threads(end: &Transport, config: &Config) -> Result<Tuning> {
    match Known::of(end, end.node_cores(), config)? {
        Known::Text(text) => parsed(&text).map_err(wrong),
        #[cfg(feature = "tuning")]
        Known::No(world) => {
            // Its ranks have no threads yet, so others measure for them.
            let builder = crate::Unisono::builder().ignore_environment();
            let texts = builder.on_threads(end.topology().ranks(), |mut comm| world.measure(&mut comm))?;
            texts
                .into_iter()
                .next()
                .expect("a world has a rank 0")
                .and_then(|text| parsed(&text).map_err(wrong))
        }
    }
}

impl Communicator {
    /// Sets the constants that rank 0 uses, and the core count of its node. Called by all ranks.
    pub(super) fn agree_on_constants(&mut self, config: &Config) -> Result<()> {
        let mut cores = [self.seat.engine().transport.node_cores() as u64];
        self.as_rank_0_has(&mut cores)?;
        let cores = cores[0] as usize;
        let mut here = Ok(Known::Text(String::new()));
        if self.rank() == 0 {
            here = Known::of(&self.seat.engine().transport, cores, config);
        }
        let mut is_error = [u8::from(here.is_err())];
        self.as_rank_0_has(&mut is_error)?;
        if is_error == [1] {
            let why = here.err().map_or_else(String::new, |error| error.to_string());
            return Err(Error::Setting(self.text_of_rank_0(&why)?));
        }
        let text = self.text_of_constants(here?, cores)?;
        self.set_constants((parsed(&text).map_err(wrong)?, cores));
        Ok(())
    }

    /// The text that rank 0 knows, or all ranks measure.
    #[cfg(feature = "tuning")]
    fn text_of_constants(&mut self, here: Known, cores: usize) -> Result<String> {
        let mut is_known = [u8::from(matches!(here, Known::Text(_)))];
        self.as_rank_0_has(&mut is_known)?;
        match (here, is_known) {
            (Known::No(world), _) => world.measure(self),
            (Known::Text(text), [1]) => self.text_of_rank_0(&text),
            (Known::Text(_), _) => {
                let world = crate::tuning::World::new(self.transport, self.ranks(), cores, None);
                world.expect("rank 0 has the same").measure(self)
            }
        }
    }

    #[cfg(not(feature = "tuning"))]
    fn text_of_constants(&mut self, Known::Text(text): Known, _: usize) -> Result<String> {
        self.text_of_rank_0(&text)
    }

    /// The text of rank 0, whatever the other ranks pass. Called by all ranks.
    pub(crate) fn text_of_rank_0(&mut self, text: &str) -> Result<String> {
        let mut size_bytes = [text.len() as u64];
        self.as_rank_0_has(&mut size_bytes)?;
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(size_bytes[0] as usize, 0);
        if !bytes.is_empty() {
            self.as_rank_0_has(&mut bytes)?;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn as_rank_0_has<T: Element>(&mut self, buffer: &mut [T]) -> Result<()> {
        // By a fixed algorithm: the constants are not agreed on yet.
        let call = Call::new(Operation::Broadcast { root: 0 }, None, T::DTYPE, buffer.len());
        let bytes = bytemuck::cast_slice_mut(buffer);
        self.collective(Algorithm::Tree)?.run(&call, bytes).map(drop)
    }
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
