//! The state of an agreement in progress.

use std::collections::{BTreeMap, BTreeSet};

use unisono_collectives::Rank;

use super::{Ballot, Time};

/// The agreement that this member has started.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) minimum: Option<usize>,
    pub(super) patience: Time,
    /// The caller's deadline, which is extended when a member calls or fails.
    pub(super) deadline: Time,
    pub(super) promised: Ballot,
    pub(super) acknowledged: Option<(Ballot, Vec<Rank>)>,
    /// A proposal that is acknowledged once the members that it excludes are fenced.
    pub(super) pending: Option<(Ballot, Vec<Rank>)>,
    pub(super) proposal: Option<Proposal>,
}

/// A proposal of this member.
#[derive(Debug)]
pub(super) struct Proposal {
    pub(super) ballot: Ballot,
    /// The members that had not failed when it began. It begins again when one of them fails.
    pub(super) participants: Vec<Rank>,
    pub(super) promises: BTreeMap<Rank, Option<(Ballot, Vec<Rank>)>>,
    pub(super) members: Option<Vec<Rank>>,
    pub(super) acknowledged: BTreeSet<Rank>,
}
