//! All-gathers for the library's own use.

use unisono_collectives::Rank;

use super::Communicator;
use crate::collective::Options;
use crate::dtype::Element;
use crate::error::Result;
use crate::transport::{Bootstrap, gather_padded};

impl Communicator {
    /// Returns the bootstrap of a set-up function. If ranks call different functions, their mismatch names both.
    pub(crate) fn as_bootstrap(&mut self, function: &'static str) -> GroupBootstrap<'_> {
        let members = (0..self.ranks()).collect();
        GroupBootstrap { world: self, members, function }
    }

    /// All-gathers elements, the same number from each rank, rank 0 first. All ranks call it.
    fn gather_equal<T: Element>(&mut self, own: &[T], function: &str) -> Result<Vec<T>> {
        let label = self.status.intern(function);
        let engine = self.engine_owner.engine();
        engine.begin()?;
        let options = Options { timeout: self.per_call.options.timeout, label, ..Options::default() };
        let all = engine.gather(own, &options);
        engine.settle(all)
    }
}

/// The bootstrap of a group, over collectives of the world. Each rank is in some group, so all ranks make the same number of collectives.
#[derive(Debug)]
pub(crate) struct GroupBootstrap<'a> {
    pub(super) world: &'a mut Communicator,
    pub(super) members: Vec<Rank>,
    pub(super) function: &'static str,
}

impl Bootstrap for GroupBootstrap<'_> {
    fn rank(&self) -> Rank {
        let own = self.world.rank();
        self.members.iter().position(|&rank| rank == own).expect("a rank is in its group")
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = gather_padded(own, |own| self.world.gather_equal(own, self.function))?;
        Ok(self.members.iter().map(|&rank| std::mem::take(&mut all[rank])).collect())
    }
}
