//! The choice of a link between nodes.

use super::bootstrap::Bootstrap;
#[cfg(any(feature = "mpi", feature = "ucx"))]
use super::bootstrap::gather;
use super::join::Joined;
use super::link::{Connected, Link, Links};
use super::tcp;
#[cfg(feature = "ucx")]
use super::ucx;
use crate::config::{Config, Interfaces, Network};
#[cfg(any(feature = "mpi", feature = "ucx"))]
use crate::system;

/// Connects ranks that share no memory, over the link that `UNISONO_NETWORK` names. By default, it uses UCX if a node has an RDMA adapter
/// and there is no MPI, which may use the adapter too. All ranks call it.
pub(super) fn connect(bootstrap: &mut dyn Bootstrap, joined: &Joined, config: &Config) -> Connected<Links> {
    let interfaces = Interfaces::from_environment();
    let controls = config.watched_by_ranks().then_some(&interfaces);
    let is_far = |rank| joined.is_far(rank);
    #[cfg(feature = "ucx")]
    if config.network == Network::Ucx || config.network == Network::Auto && has_rdma(bootstrap)? {
        match links(bootstrap, "ucx", controls, |bootstrap| ucx::link(bootstrap, is_far))? {
            Err(why) if config.network == Network::Auto => {
                if bootstrap.rank() == 0 && config.warnings {
                    system::print_once(&format!("messages between nodes go over TCP, since {why}"));
                }
            }
            Err(why) => return Ok(Err(format!("UNISONO_NETWORK is ucx, but {why}"))),
            connected => return Ok(connected),
        }
    }
    let connected = links(bootstrap, "tcp", controls, |bootstrap| tcp::link(bootstrap, is_far, &interfaces))?;
    let by_name = if config.network == Network::Tcp { "UNISONO_NETWORK is tcp, but " } else { "" };
    Ok(connected.map_err(|why| {
        format!("{by_name}{why}; UNISONO_INTERFACE names the interface or network between the nodes")
    }))
}

/// Returns whether a node has an adapter that reaches others without TCP. All ranks call it.
#[cfg(any(feature = "mpi", feature = "ucx"))]
pub(super) fn has_rdma(bootstrap: &mut dyn Bootstrap) -> crate::error::Result<bool> {
    Ok(gather(bootstrap, &system::has_rdma())?.contains(&true))
}

/// Returns links, and control connections over the interfaces `controls`, if any. All ranks call it, with or without `controls`.
fn links(
    bootstrap: &mut dyn Bootstrap,
    name: &'static str,
    controls: Option<&Interfaces>,
    connect: impl Fn(&mut dyn Bootstrap) -> Connected<Box<dyn Link>>,
) -> Connected<Links> {
    let collectives = match connect(bootstrap)? {
        Ok(link) => link,
        Err(problem) => return Ok(Err(problem)),
    };
    let messages = match connect(bootstrap)? {
        Ok(link) => link,
        Err(problem) => return Ok(Err(problem)),
    };
    let controls = match controls {
        // With all other ranks, since all of them agree on the survivors of a failure. They carry no payload, so that the report of a failure is not
        // queued behind one.
        Some(interfaces) => tcp::sockets(bootstrap, |_| true, interfaces)?,
        None => Ok(Vec::new()),
    };
    Ok(controls.map(|controls| Links { name, collectives, messages, controls }))
}
