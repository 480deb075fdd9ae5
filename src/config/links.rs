//! The choice of links inside a node, and between nodes.

use super::{Config, NETWORK, TRANSPORT};
use crate::error::{Error, Result};

/// The transport of messages between ranks of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Inside {
    /// Through shared memory, if the system permits it.
    #[default]
    SharedMemory,
    /// Through MPI, like all others.
    Messages,
}

/// The use of copies by the kernel for large unregistered arrays between processes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum KernelCopies {
    /// If it is permitted, and a test at start-up shows that the kernel copies about as fast as a process itself.
    #[default]
    Auto,
    /// If it is permitted.
    On,
    Off,
}

impl KernelCopies {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// The link between nodes, as `UNISONO_NETWORK` sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Network {
    /// Unisono's connections where there is nothing better than TCP, and where there is no MPI.
    #[default]
    Auto,
    Mpi,
    Tcp,
    /// UCX, which uses RDMA where it can.
    Ucx,
}

impl Network {
    pub(super) const ALL: [Self; 4] = [Self::Auto, Self::Mpi, Self::Tcp, Self::Ucx];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mpi => "mpi",
            Self::Tcp => "tcp",
            Self::Ucx => "ucx",
        }
    }

    /// Returns whether Unisono's own link is asked for, by name.
    pub(crate) fn is_own(self) -> bool {
        matches!(self, Self::Tcp | Self::Ucx)
    }
}

impl Config {
    /// # Errors
    /// [`Error::Setting`] if the links that are asked for exclude each other, or this program lacks one.
    pub(super) fn check_links(&self) -> Result<()> {
        let network = self.network.name();
        if self.inside == Inside::Messages && self.network.is_own() {
            return Err(Error::Setting(format!(
                "{TRANSPORT}=mpi asks for MPI's messages between all ranks, and {NETWORK}={network} for others between nodes: leave \
                 one out"
            )));
        }
        if self.network == Network::Ucx && !cfg!(feature = "ucx") {
            return Err(Error::Setting(format!(
                "{NETWORK}={network} needs a build with the feature `ucx`, which this program lacks"
            )));
        }
        Ok(())
    }

    /// Returns whether these settings ask for MPI's messages.
    pub(crate) fn needs_mpi(&self) -> bool {
        self.inside == Inside::Messages || self.network == Network::Mpi
    }
}
