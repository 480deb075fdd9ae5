//! All-gathers for the library's own use.

use unisono_collectives::Rank;

use super::Communicator;
use crate::dtype::Element;
use crate::error::Result;
use crate::transport::{Bootstrap, gather_padded};

impl Communicator {
    pub(crate) fn as_bootstrap(&mut self) -> GroupBootstrap<'_> {
        let members = (0..self.ranks()).collect();
        GroupBootstrap { world: self, members }
    }

    /// All-gathers elements, the same number from each rank, rank 0 first. All ranks call it.
    fn gather_equal<T: Element>(&mut self, own: &[T]) -> Result<Vec<T>> {
        let engine = self.engine_owner.engine();
        engine.begin()?;
        let all = engine.gather(own, self.per_call.options.timeout);
        engine.settle(all)
    }
}

/// The bootstrap of a group, over collectives of the world. Each rank is in some group, so all ranks make the same number of collectives.
#[derive(Debug)]
pub(crate) struct GroupBootstrap<'a> {
    pub(super) world: &'a mut Communicator,
    pub(super) members: Vec<Rank>,
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
        let mut all = gather_padded(own, |own| self.world.gather_equal(own))?;
        Ok(self.members.iter().map(|&rank| std::mem::take(&mut all[rank])).collect())
    }
}
