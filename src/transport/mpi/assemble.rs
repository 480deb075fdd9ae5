//! The fabric of a world of MPI: the memory of each node, and Unisono's connections between nodes, or MPI's messages.

use unisono_collectives::Topology;

use super::World;
use crate::config::{Config, Inside, Network};
use crate::error::{Error, Result};
use crate::system;
use crate::transport::bootstrap::Bootstrap;
use crate::transport::join::{Joined, join};
use crate::transport::link::Links;
use crate::transport::{Fabric, network};

/// The largest world over MPI that uses Unisono's connections by default. Every pair of ranks connects at the start, whereas MPI connects
/// only ranks that communicate.
const MAX_RANKS: usize = 512;

/// Returns the fabric of ranks that MPI has started or connects. All ranks call it.
pub(super) fn assemble(
    bootstrap: &mut dyn Bootstrap,
    topology: Topology,
    mpi: World,
    (config, warnings): (&Config, Vec<String>),
) -> Result<Fabric> {
    let declared = config.nodes.as_ref().filter(|declared| declared.ranks() == topology.ranks());
    let joined = join(bootstrap, (topology, declared), config, warnings)?;
    joined.warn_if_not_shared("MPI");
    let links = match own_links(bootstrap, &joined, config)? {
        Some(links) => links,
        None => mpi.links(joined.topology.ranks(), config.segment_bytes),
    };
    let mut fabric = joined.over(bootstrap, links)?;
    fabric.mpi = Some(Box::new(mpi));
    Ok(fabric)
}

/// Returns Unisono's connections, if they are requested, or if MPI has nothing better than TCP between nodes. All ranks call it.
///
/// # Errors
/// [`Error::Launch`], on all ranks, if the connections are requested and ranks cannot connect.
fn own_links(bootstrap: &mut dyn Bootstrap, joined: &Joined, config: &Config) -> Result<Option<Links>> {
    // All ranks have the same setting.
    let is_requested = config.network.is_own();
    if !is_requested && !is_better(bootstrap, &joined.topology, config)? {
        return Ok(None);
    }
    match network::connect(bootstrap, joined, config)? {
        Ok(links) => Ok(Some(links)),
        Err(why) if is_requested => Err(Error::Launch(why)),
        Err(why) => {
            if bootstrap.rank() == 0 && config.warnings {
                system::print_line(&format!("messages between nodes go through MPI, since {why}"));
            }
            Ok(None)
        }
    }
}

/// Returns whether Unisono's connections are preferable to MPI: there are several nodes, not too many ranks, and no adapter that MPI
/// could use better.
fn is_better(bootstrap: &mut dyn Bootstrap, topology: &Topology, config: &Config) -> Result<bool> {
    let is_possible = config.network == Network::Auto && config.inside == Inside::SharedMemory;
    if !is_possible || topology.nodes() < 2 || topology.ranks() > MAX_RANKS {
        return Ok(false);
    }
    Ok(!network::has_rdma(bootstrap)?)
}
