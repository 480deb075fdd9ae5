//! The state of a simulation.

use std::num::NonZeroU32;

use crate::world::Rank;

/// An event of the simulation. Events are processed in the order of their times.
///
/// Messages at the same time are processed in this order. It compares positions relative to nodes before ranks, so that no node is preferred.
/// So identical nodes behave identically, which allows ranks to represent others.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A core that ranks share runs one of them.
    Turn(usize),
    /// A message between nodes, whose two ends are ready.
    Leave(Route),
    /// A message whose first byte has reached the incoming port.
    Arrive(Route),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) local_rank: Rank,
    /// The distance from the sender's node to the receiver's.
    pub(super) nodes: usize,
    pub(super) from: Rank,
    pub(super) to: Rank,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    pub(super) from: Rank,
    /// The distance from the sender to the receiver, in ranks.
    pub(super) places: NonZeroU32,
    /// The distance from the sender's node to the receiver's.
    pub(super) nodes: usize,
    pub(super) size_bytes: usize,
    pub(super) sent_us: f64,
    /// Whether the sender waits until it has been received.
    pub(super) is_awaited: bool,
    /// Whether it passes through staging memory, if the machine has any.
    pub(super) is_staged: bool,
}

/// The progress of a rank in an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    #[default]
    Begin,
    Receive,
    End,
}

#[derive(Debug, Default)]
pub(super) struct RankState {
    pub(super) core: usize,
    /// Its index among the ranks of the core.
    pub(super) turn: usize,
    pub(super) act: usize,
    pub(super) stage: Stage,
    /// When the rank can continue with its act; infinity while that is unknown.
    pub(super) awaited_us: f64,
    /// When it began to receive.
    pub(super) ready_us: f64,
    pub(super) inbox: Vec<Message>,
    /// The message from another node that the rank is receiving.
    pub(super) in_transit: Option<Message>,
    /// When the message that the rank has sent is received, if it waits for that.
    pub(super) received_us: f64,
    pub(super) finish_us: f64,
}

/// A core, with the ranks that take turns on it.
#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) ranks: Vec<Rank>,
    /// The index of the rank whose turn it is.
    pub(super) turn: usize,
    pub(super) at_us: f64,
    /// The time of its next event; infinity without one.
    pub(super) next_us: f64,
}
