//! The two levels of a world: ranks of one node, and leaders of nodes.

use std::sync::{Arc, Mutex};

use unisono::{Communicator, Result};

/// The two levels of a world of several nodes: the ranks of this rank's node, and the leaders of all nodes. Compressors share it.
#[derive(Debug, Clone)]
pub struct Levels(pub(super) Option<Arc<Mutex<Groups>>>);

#[derive(Debug)]
pub(super) struct Groups {
    /// The ranks of this rank's node, if it has several.
    pub(super) node: Option<Communicator>,
    /// The leaders, on each of them.
    pub(super) leaders: Option<Communicator>,
}

impl Levels {
    /// Splits the world. All ranks call it. Calls among nodes keep the [timeout](Communicator::set_timeout) that the communicator has now.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    pub fn of(comm: &mut Communicator) -> Result<Self> {
        let topology = comm.topology();
        if topology.nodes() == 1 {
            return Ok(Self(None));
        }
        let node = topology.node_of(comm.rank());
        let is_leader = topology.local_rank(comm.rank()) == 0;
        let has_others = topology.node(node).ranks() > 1;
        // A rank that is alone on its node needs no group for it.
        let node = comm.split(has_others.then_some(node), 0)?;
        let leaders = comm.split(is_leader.then_some(0), 0)?;
        Ok(Self(Some(Arc::new(Mutex::new(Groups { node, leaders })))))
    }
}
