//! All-gathers among the members of a view, over the connections of the control protocol: the bootstrap of a world of survivors.

use std::collections::BTreeMap;

use unisono_collectives::Rank;

use super::{Agreement, SILENCE, Time};

pub(super) const LAST_ROUND: u64 = u64::MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gathered {
    /// The bytes of every member, in the order of their ranks. They are meaningless in the last round of a view.
    All(Vec<Vec<u8>>),
    /// This member has failed, or has called for another view.
    Failed(Rank),
    /// These members have sent nothing before the deadline of the caller.
    Missing(Vec<Rank>),
}

/// The all-gather in progress, and the bytes received for it and for the next.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// The view and round of the latest all-gather.
    at: (u64, u64),
    deadline: Option<Time>,
    /// The time from an extension to the deadline.
    patience: Time,
    arrived: BTreeMap<(u64, u64), BTreeMap<Rank, Vec<u8>>>,
    pub(super) result: Option<Gathered>,
}

impl Gathering {
    pub(super) fn next_round(&self, view: u64) -> u64 {
        if self.at.0 == view { self.at.1.saturating_add(1) } else { 1 }
    }

    /// Begins a round of a view. It ends after the `patience` of the caller and [`SILENCE`].
    pub(super) fn begin(&mut self, own: Rank, at: (u64, u64), bytes: Vec<u8>, (now, patience): (Time, Time)) {
        (self.at, self.patience) = (at, patience.saturating_add(SILENCE));
        self.deadline = Some(now.saturating_add(self.patience));
        self.arrived.retain(|at, _| *at >= self.at);
        self.arrived.entry(self.at).or_default().insert(own, bytes);
    }

    pub(super) fn is_last(&self) -> bool {
        self.at.1 == LAST_ROUND
    }

    pub(super) fn extend_deadline(&mut self, now: Time) {
        self.deadline = self.deadline.map(|_| now.saturating_add(self.patience));
    }

    /// Completes the last round, since another member has completed it.
    pub(super) fn finish(&mut self) {
        if self.is_last() && self.deadline.take().is_some() {
            self.result = Some(Gathered::All(Vec::new()));
        }
    }

    /// Stores the bytes of another member, which may be a round or a view ahead.
    pub(super) fn receive(&mut self, from: Rank, at: (u64, u64), bytes: Vec<u8>, view: u64) {
        let is_of_view = at.0 == view && (at.1 == LAST_ROUND || at.1 <= self.next_round(view));
        if self.at <= at && (is_of_view || at == (view + 1, 1)) {
            self.arrived.entry(at).or_default().insert(from, bytes);
        }
    }

    /// Ends the round if all bytes have arrived, a member has failed, or the deadline is over.
    pub(super) fn advance(&mut self, agreement: &Agreement, now: Time) {
        let Some(deadline) = self.deadline else { return };
        let members = &agreement.view.members;
        let here = self.arrived.entry(self.at).or_default();
        let missing: Vec<_> = members.iter().copied().filter(|rank| !here.contains_key(rank)).collect();
        let result = if missing.is_empty() {
            Gathered::All(members.iter().filter_map(|rank| here.remove(rank)).collect())
        } else if let Some(rank) = agreement.withdrawn_member() {
            Gathered::Failed(rank)
        } else if now >= deadline {
            Gathered::Missing(missing)
        } else {
            return;
        };
        self.deadline = None;
        self.result = Some(result);
    }
}
