//! The choice of links inside a node, and between nodes.

use unisono_collectives::named;

use super::{Config, NETWORK, TRANSPORT};
use crate::error::{Error, Result};

named! {
    /// The transport of messages between ranks of a node, as `UNISONO_TRANSPORT` sets it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub(crate) enum Inside: "transport" {
        /// Through shared memory, if the system permits it.
        #[default]
        SharedMemory = "auto",
        /// Through MPI, like all others.
        Messages = "mpi",
    }
}

named! {
    /// The use of copies by the kernel for large unregistered arrays between processes of a node, as `UNISONO_KERNEL_COPIES` sets it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub(crate) enum KernelCopies: "use of copies by the kernel" {
        /// If it is permitted, and a test at start-up shows that the kernel copies about as fast as a process itself.
        #[default]
        Auto = "auto",
        /// If it is permitted.
        On = "on",
        Off = "off",
    }
}

named! {
    /// The link between nodes, as `UNISONO_NETWORK` sets it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub(crate) enum Network: "network" {
        /// Unisono's TCP connections, if no faster network is available or there is no MPI.
        #[default]
        Auto = "auto",
        Mpi = "mpi",
        Tcp = "tcp",
        /// UCX, which uses RDMA where it can.
        Ucx = "ucx",
    }
}

impl Network {
    /// Returns whether one of Unisono's links is set by name.
    pub(crate) fn is_own(self) -> bool {
        matches!(self, Self::Tcp | Self::Ucx)
    }
}

impl Config {
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

    pub(crate) fn needs_mpi(&self) -> bool {
        self.inside == Inside::Messages || self.network == Network::Mpi
    }
}
