//! The choice of a link between nodes.

use super::bootstrap::Bootstrap;
use super::join::Joined;
use super::link::Links;
use super::tcp;
#[cfg(feature = "ucx")]
use super::ucx;
use crate::config::{Config, Interfaces, Network};
use crate::error::Result;
#[cfg(feature = "ucx")]
use crate::system;

/// Connects ranks that share no memory, over the link that `UNISONO_NETWORK` names. By default, it uses UCX if a node has an RDMA adapter
/// and there is no MPI, which may use the adapter too. All ranks call it. If ranks cannot connect, it returns the reason, identical on all
/// ranks.
///
/// # Errors
/// Those of the bootstrap.
pub(super) fn connect(
    bootstrap: &mut dyn Bootstrap,
    joined: &Joined,
    config: &Config,
) -> Result<std::result::Result<Links, String>> {
    let (interfaces, has_controls) = (Interfaces::from_environment(), config.watched_by_ranks());
    let is_far = |rank| joined.is_far(rank);
    #[cfg(feature = "ucx")]
    if config.network == Network::Ucx || config.network == Network::Auto && ucx::is_better(bootstrap)? {
        match ucx::connect(bootstrap, is_far, &interfaces, has_controls)? {
            Err(why) if config.network == Network::Auto => {
                if bootstrap.rank() == 0 && config.warnings {
                    system::print_line(&format!("messages between nodes go over TCP, since {why}"));
                }
            }
            Err(why) => return Ok(Err(format!("UNISONO_NETWORK is ucx, but {why}"))),
            connected => return Ok(connected),
        }
    }
    let connected = tcp::connect(bootstrap, is_far, &interfaces, has_controls)?;
    let by_name = if config.network == Network::Tcp { "UNISONO_NETWORK is tcp, but " } else { "" };
    Ok(connected.map_err(|why| {
        format!("{by_name}{why}; UNISONO_INTERFACE names the interface or network between the nodes")
    }))
}
