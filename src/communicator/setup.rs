//! Set-up of a communicator: settings, and agreement between its ranks.

use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::Communicator;
use super::per_call::PerCall;
use crate::collective::{Engine, Limits};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::record::FIRST_OF_SETUP;
use crate::request::EngineOwner;
use crate::select::Choice;
use crate::status::Guard;
use crate::transport::{Deadlines, Fabric};
use crate::tuning::Tuning;

impl Communicator {
    pub(crate) fn of_threads(ends: Vec<Fabric>, config: &Config) -> Result<Vec<Self>> {
        let job = RandomState::new().hash_one(0);
        let end = |end| {
            let comm = Self::new(end, config)?;
            comm.status.set_flight_dir(config.flight_dir(job));
            Ok(comm)
        };
        ends.into_iter().map(end).collect()
    }

    /// Returns a communicator over this transport, without a guard.
    pub(crate) fn new(mut transport: Fabric, config: &Config) -> Result<Self> {
        config.chaos.into_iter().for_each(|chaos| transport.inject(chaos));
        let mut topology = transport.topology().clone();
        if let Some(declared) = &config.nodes {
            let (ranks, of_nodes) = (topology.ranks(), declared.ranks());
            if ranks != of_nodes {
                let sizes: Vec<_> = (0..declared.nodes()).map(|node| declared.node(node).ranks()).collect();
                return Err(Error::Setting(format!(
                    "UNISONO_NODES declares nodes of {sizes:?} ranks, which are {of_nodes}, in a world of {ranks}"
                )));
            }
            topology = declared.clone();
        }
        let choice = match &config.algorithm {
            Some(name) => name.parse().map_err(|error| {
                Error::Setting(format!("the environment variable UNISONO_ALGORITHM: {error}"))
            })?,
            None => Choice::Auto,
        };
        let quiet = config.quiet_timeout;
        let limits = Limits {
            usual: Deadlines { timeout: config.timeout, quiet },
            first: Deadlines { timeout: config.first_timeout, quiet },
        };
        let engine = Engine::new(transport, topology.clone(), limits);
        let transport = &engine.transport;
        let comm = Self {
            choice,
            rank: transport.rank(),
            transport: transport.name(),
            has_mpi: transport.has_mpi(),
            is_oversubscribed: transport.is_oversubscribed(),
            registry: transport.registry(),
            guard: None,
            config: config.clone(),
            constants: (Tuning::default(), transport.node_cores()),
            groups: 0,
            former_ranks: Box::default(),
            minimum_ranks: None,
            local_rank: transport.topology().local_rank(transport.rank()),
            #[cfg(feature = "nccl")]
            device: std::sync::OnceLock::new(),
            topology,
            status: transport.status().clone(),
            per_call: PerCall::default(),
            interval: (Instant::now(), Duration::ZERO),
            messages: engine.messages.clone(),
            engine_owner: EngineOwner::new(engine),
        };
        comm.check_choice(&comm.choice)?;
        Ok(comm)
    }

    /// Takes the connections of this rank with ranks of other nodes, for its guard.
    pub(crate) fn take_controls(&mut self) -> Vec<(Rank, OwnedFd)> {
        self.engine_owner.engine().transport.take_controls()
    }

    pub(crate) fn guard(&mut self, guard: Arc<dyn Guard>) {
        self.status.set_guard(&guard);
        self.guard = Some(guard);
    }

    /// Sets the constants of the cost model for all later calls. All ranks set the same.
    pub fn set_tuning(&mut self, tuning: &Tuning) {
        self.set_constants((tuning.clone(), self.constants.1));
    }

    /// Sets the constants, for nodes of this many cores.
    pub(crate) fn set_constants(&mut self, constants: (Tuning, usize)) {
        self.engine_owner.engine().set_tuning(&constants.0, constants.1);
        self.constants = constants;
    }

    /// Returns the communicator of a rank that is a process. Calls before [`Communicator::begin`] belong to the set-up.
    pub(crate) fn of_process(transport: Fabric, config: &Config) -> Result<Self> {
        let mut comm = Self::new(transport, config)?;
        comm.engine_owner.engine().calls.sequence = FIRST_OF_SETUP;
        Ok(comm)
    }

    /// Ends the set-up: the next call is the first of the user.
    pub(crate) fn begin(&mut self) {
        self.engine_owner.engine().calls.sequence = 0;
    }
}
