//! How a world of processes starts without MPI: which machines its ranks are on, and what connects them.

use unisono_collectives::Topology;

use super::Transport;
use super::agreement::agree;
use super::bootstrap::{Bootstrap, gather_bytes};
use super::join::{Joined, join};
use super::node::Sharing;
use super::nodes::Nodes;
use super::shared::Shared;
use crate::config::{Config, Network, OnFailure};
use crate::error::{Error, Result};
use crate::system;

/// Joins a world of processes without MPI: those of one machine share memory, and those of several connect. All ranks call it.
pub(super) fn begin(bootstrap: &mut dyn Bootstrap, config: Result<Config>) -> Result<(Transport, Config)> {
    let (config, odd) = agree(bootstrap, config, "")?;
    if config.needs_mpi() {
        return Err(Error::Setting(
            "UNISONO_TRANSPORT=mpi and UNISONO_NETWORK=mpi ask for MPI's messages, and this world has no MPI"
                .to_owned(),
        ));
    }
    if config.on_failure == OnFailure::EndJob {
        system::raise_open_files();
    }
    let topology = machines(bootstrap)?;
    // Ranks of one machine that are declared to be of several nodes share memory, unless they are to connect.
    let declared = config.nodes.as_ref().filter(|_| config.network == Network::Tcp);
    let declared = declared.filter(|declared| declared.ranks() == topology.ranks());
    let joined = join(bootstrap, (&topology, declared), &config, odd.into_iter().collect())?;
    if config.connects || declared.unwrap_or(&topology).nodes() > 1 {
        let nodes = Nodes::connect(bootstrap, topology, joined, &config)?;
        return Ok((Transport::Nodes(Box::new(nodes)), config));
    }
    let Joined { node_cores, spins, status, sharing } = joined;
    let shared = match sharing {
        Sharing::Done(shared) => *shared,
        Sharing::Alone => Shared::of_process(vec![status], (spins, node_cores))?.remove(0),
        Sharing::Cannot(why) => {
            return Err(Error::Launch(format!("{why}; without MPI there is no other way")));
        }
    };
    Ok((Transport::Shared(Box::new(shared)), config))
}

/// The nodes of the ranks: the machines, or the containers, that they are on.
fn machines(bootstrap: &mut dyn Bootstrap) -> Result<Topology> {
    let all = gather_bytes(bootstrap, system::machine().as_bytes())?;
    let mut machines: Vec<&[u8]> = Vec::new();
    let mut node = |machine| {
        machines.iter().position(|known| *known == machine).unwrap_or_else(|| {
            machines.push(machine);
            machines.len() - 1
        })
    };
    Ok(Topology::from_node_of(all.iter().map(|machine| node(&machine[..])).collect()))
}
