//! The bootstrap over MPI.

use unisono_collectives::Rank;

use super::sys::Comm;
use crate::error::Result;
use crate::transport::Bootstrap;

/// All-gathers over a communicator. They block, so they are used only during set-up.
#[derive(Debug)]
pub(super) struct OfComm {
    comm: Comm,
    rank: Rank,
    ranks: usize,
}

impl OfComm {
    pub(super) fn new(comm: Comm) -> Result<Self> {
        Ok(Self { comm, rank: comm.rank()?, ranks: comm.ranks()? })
    }
}

impl Bootstrap for OfComm {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.comm.all_gather_bytes(own)
    }
}
