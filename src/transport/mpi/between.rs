//! Whether messages between nodes go through MPI, or over connections of our own.

use unisono_collectives::Topology;

use super::launch;
use crate::config::{Config, Inside, Interfaces, Network};
use crate::error::{Error, Result};
use crate::system;
use crate::transport::bootstrap::{Bootstrap, gather};
use crate::transport::shared::Shared;
use crate::transport::tcp::{self, Tcp};

/// The most ranks that connect unless it is asked for: each two of them have a connection from the start, where MPIs connect those that
/// communicate.
const MOST_RANKS: usize = 512;

/// Connects the ranks that share no memory, if that is asked for, or MPI has nothing better than TCP between nodes. All ranks call
/// it.
///
/// # Errors
/// [`Error::Launch`], on all ranks, if it is asked for and ranks cannot connect.
pub(super) fn connect(
    bootstrap: &mut dyn Bootstrap,
    topology: &Topology,
    node: Option<&Shared>,
    (config, spins): (&Config, u32),
) -> Result<Option<Tcp>> {
    // All ranks have the same setting.
    let is_asked_for = config.network == Network::Tcp;
    if !is_asked_for && !is_better(bootstrap, topology, config)? {
        return Ok(None);
    }
    let is_far = |rank| !node.is_some_and(|node| node.has(rank));
    let connected =
        tcp::connect(bootstrap, is_far, &Interfaces::from_environment(), (spins, config.watched_by_ranks()))?;
    match connected {
        Ok(tcp) => Ok(Some(tcp)),
        Err(why) if is_asked_for => Err(Error::Launch(format!("UNISONO_NETWORK is tcp, but {why}"))),
        Err(why) => {
            if bootstrap.rank() == 0 && config.warnings {
                launch::say(&format!("messages between nodes go through MPI, since {why}"));
            }
            Ok(None)
        }
    }
}

/// Whether our connections are to be preferred: there are several nodes, not too many ranks, and no adapter that MPI could use better.
fn is_better(bootstrap: &mut dyn Bootstrap, topology: &Topology, config: &Config) -> Result<bool> {
    let is_possible = config.network == Network::Auto && config.inside == Inside::SharedMemory;
    if !is_possible || topology.nodes() < 2 || topology.ranks() > MOST_RANKS {
        return Ok(false);
    }
    let has_rdma = gather(bootstrap, [u64::from(system::has_rdma())])?;
    Ok(has_rdma.iter().all(|[has]| *has == 0))
}
