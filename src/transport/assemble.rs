//! The fabric of a world of processes without MPI: the memory of each node, and a link between nodes.

use unisono_collectives::Topology;

use super::Fabric;
use super::agreement::agree;
use super::bootstrap::{Bootstrap, gather};
use super::join::{join, topology};
use super::network;
use crate::config::{Config, OnFailure};
use crate::error::{Error, Result};
use crate::system;

impl Fabric {
    /// Returns the fabric of a world of processes without MPI, and the settings that all ranks share. Ranks of one machine share memory if the system
    /// permits it; all others connect. All ranks call it, including one with invalid settings, since the others wait for it.
    ///
    /// # Errors
    /// [`Error::Launch`] if they can neither share memory nor connect, or the bootstrap fails; [`Error::Setting`], on
    /// all ranks, for settings that are invalid or differ.
    pub(crate) fn processes(bootstrap: &mut dyn Bootstrap, config: Result<Config>) -> Result<(Self, Config)> {
        let (rank, ranks) = (bootstrap.rank(), bootstrap.ranks());
        if rank >= ranks {
            return Err(Error::Launch(format!("the bootstrap's rank is {rank} in a world of {ranks} ranks")));
        }
        let (config, warning) = agree(bootstrap, config, "")?;
        if config.needs_mpi() {
            return Err(Error::Setting(
                "UNISONO_TRANSPORT=mpi and UNISONO_NETWORK=mpi require MPI, but this world has no MPI"
                    .to_owned(),
            ));
        }
        if config.on_failure == OnFailure::EndJob {
            system::raise_open_files();
        }
        // The machines or containers of the ranks.
        let topology = topology(&gather(bootstrap, &system::machine().to_owned())?);
        // Ranks of one machine that are declared to be on several nodes share memory, unless the settings make them connect.
        let declared = config.nodes.as_ref().filter(|_| config.network.is_own());
        let declared = declared.filter(|declared| declared.ranks() == topology.ranks()).cloned();
        let nodes = declared.as_ref().map_or(1, Topology::nodes).max(topology.nodes());
        let connects = config.connects || nodes > 1;
        let joined = join(bootstrap, (topology, declared.as_ref()), &config, warning.into_iter().collect())?;
        // There is one node, so all ranks agree on whether it shares memory.
        if !connects && joined.is_shared() {
            return Ok((joined.alone()?, config));
        }
        joined.warn_if_not_shared("the network", &config);
        let links = network::connect(bootstrap, &joined, &config)?.map_err(Error::Launch)?;
        Ok((joined.over(bootstrap, links)?, config))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use unisono_collectives::Rank;

    use super::*;
    use crate::config::Network;
    use crate::transport::bootstrap::tests::pair::{Pair, pair};

    /// A bootstrap of two ranks, each of which seems to be on a machine of its own.
    struct OnMachines(Pair);

    impl Bootstrap for OnMachines {
        fn rank(&self) -> Rank {
            self.0.rank()
        }

        fn ranks(&self) -> usize {
            self.0.ranks()
        }

        fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
            let machine = |name: String| serde_json::to_vec(&name).unwrap();
            if own == machine(system::machine().to_owned()) {
                return self.0.all_gather(&machine(format!("machine {}", self.rank())));
            }
            self.0.all_gather(own)
        }
    }

    #[test]
    fn machines_connect_even_if_they_are_declared_as_one_node() {
        let nodes = Some(Topology::single_node(2));
        let config = Config { nodes, network: Network::Tcp, warnings: false, ..Config::default() };
        std::thread::scope(|scope| {
            for pair in pair() {
                let config = config.clone();
                scope.spawn(|| {
                    let (fabric, _) = Fabric::processes(&mut OnMachines(pair), Ok(config)).unwrap();
                    assert!(fabric.can_pipeline(), "the ranks share no memory");
                });
            }
        });
    }

    #[test]
    fn rank_outside_of_the_world_is_refused() {
        let (to, from) = channel();
        let error = Fabric::processes(&mut Pair(2, to, from), Ok(Config::default())).unwrap_err().to_string();
        assert!(error.ends_with("the bootstrap's rank is 2 in a world of 2 ranks"), "{error}");
    }
}
