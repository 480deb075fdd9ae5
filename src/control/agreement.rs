//! The agreement of the members of a view on the next one: Paxos, whose acceptors are the members, and in which all members of
//! the proposed view must acknowledge it.
//!
//! The lowest member that has not failed proposes, once every member has started the agreement or has failed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use unisono_collectives::Rank;

use super::message::{Ballot, Vote};
use super::view::{Evidence, Failures, View};
use super::{FENCE, SILENCE, Time};

#[cfg(test)]
mod tests;

/// The result of an agreement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The members continue in this view.
    Agreed(View),
    /// Another member has [finished](super::Endpoint::finish) the latest view. That member and this one continue in it.
    Finished,
    /// The remaining members may not continue without the lost ones.
    Partitioned { lost: Vec<Rank> },
    /// These members have neither failed nor called before the deadline of the caller.
    Missing(Vec<Rank>),
}

/// The agreement that this member has started.
#[derive(Debug, Default)]
struct Call {
    minimum: Option<usize>,
    patience: Time,
    /// The caller's deadline, which is extended when a member calls or fails.
    deadline: Time,
    promised: Ballot,
    acknowledged: Option<(Ballot, Vec<Rank>)>,
    /// A proposal that is acknowledged once the members that it excludes are fenced.
    pending: Option<(Ballot, Vec<Rank>)>,
    proposal: Option<Proposal>,
}

/// A proposal of this member.
#[derive(Debug, Default)]
struct Proposal {
    ballot: Ballot,
    /// The members that had not failed when it began. It begins again when one of them fails.
    participants: Vec<Rank>,
    promises: BTreeMap<Rank, Option<(Ballot, Vec<Rank>)>>,
    members: Option<Vec<Rank>>,
    acknowledged: BTreeSet<Rank>,
}

/// The members of a job, and the agreement in progress.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    own: Rank,
    /// The latest view of this member.
    pub(super) view: View,
    failures: Failures,
    /// The latest number that each other member has called for, and the members that it cannot reach.
    ready: BTreeMap<Rank, (u64, Vec<Rank>)>,
    /// Whether another member continues without this one. This one then does not compete with it.
    is_excluded: bool,
    /// The time when this member last learned that another is lost.
    last_loss_at: Time,
    call: Option<Call>,
    /// Whether another member has completed the last all-gather of the latest view, perhaps before this one calls again.
    is_finished: bool,
    /// Votes for other members, and of this member for itself, with the numbers of their views.
    pub(super) outgoing: VecDeque<(Rank, u64, Vote)>,
    /// The result of the latest agreement, until it is taken.
    pub(super) outcome: Option<Outcome>,
}

impl Agreement {
    pub(super) fn new(own: Rank, ranks: usize) -> Self {
        let view = View { number: 0, members: (0..ranks).collect() };
        Self { own, view, ..Self::default() }
    }

    pub(super) fn is_failed(&self, rank: Rank) -> bool {
        self.failures.evidence(rank).is_some()
    }

    /// Returns a member that has failed, or has called for the next view.
    pub(super) fn withdrawn_member(&self) -> Option<Rank> {
        let next = self.view.number + 1;
        let has_withdrawn = |rank: &Rank| {
            self.is_failed(*rank) || self.ready.get(rank).is_some_and(|(number, _)| *number >= next)
        };
        self.view.members.iter().copied().find(has_withdrawn)
    }

    /// Returns the other members that have called for a view.
    pub(super) fn callers(&self) -> impl Iterator<Item = Rank> {
        self.ready.keys().copied()
    }

    /// Returns the other candidates during an agreement, and whether each has called.
    pub(super) fn attending(&self) -> Vec<(Rank, bool)> {
        let others = self.candidates().into_iter().filter(|&rank| rank != self.own && self.call.is_some());
        others.map(|rank| (rank, self.is_ready(rank))).collect()
    }

    /// Starts the agreement on the next view, which ends with an `outcome`.
    pub(super) fn call(&mut self, now: Time, patience: Time, minimum: Option<usize>) {
        if self.is_finished {
            self.outcome = Some(Outcome::Finished);
            return;
        }
        let deadline = now.saturating_add(patience);
        self.call = Some(Call { minimum, patience, deadline, ..Call::default() });
        // A member that others have lost meanwhile may be silent here too.
        self.last_loss_at = now;
        self.announce();
        self.advance(now);
    }

    /// Sends a vote for the next view.
    fn send(&mut self, to: Rank, vote: Vote) {
        self.outgoing.push_back((to, self.view.number + 1, vote));
    }

    /// Records that a member has failed.
    pub(super) fn fail(&mut self, rank: Rank, evidence: Evidence, now: Time) {
        if rank != self.own && self.failures.add(rank, evidence, now) {
            if evidence == Evidence::Lost {
                self.last_loss_at = now;
                self.send(rank, Vote::Exclude);
            }
            self.announce();
            self.extend_deadline(now);
        }
        self.advance(now);
    }

    /// Records a new connection with another member, which has received nothing yet. A member that has been lost meanwhile must not
    /// mistake the end of this connection for the death of a process.
    pub(super) fn connect(&mut self, rank: Rank) {
        if self.failures.lost_since(rank).is_some() {
            self.send(rank, Vote::Exclude);
        } else if self.call.is_some() {
            self.announce_to(rank);
        }
    }

    /// Handles a vote of another member, for the view of this number.
    pub(super) fn handle(&mut self, from: Rank, number: u64, vote: Vote, now: Time) {
        if vote == Vote::Exclude {
            self.is_excluded = true;
            return self.fail(from, Evidence::Lost, now);
        }
        // Messages that a member sent before it died count.
        if self.failures.lost_since(from).is_some() || !self.view.members.contains(&from) {
            return;
        }
        if number == self.view.number && !matches!(vote, Vote::Commit { .. }) {
            // It has not received the decision, whose proposer may have failed.
            let commit = Vote::Commit { members: self.view.members.clone() };
            self.outgoing.push_back((from, number, commit));
            return;
        }
        if let Vote::Ready { dead, lost } = vote {
            if lost.contains(&self.own) {
                return self.fail(from, Evidence::Lost, now);
            }
            if self.ready.get(&from).is_none_or(|(_, known)| *known != lost) {
                self.last_loss_at = now;
            }
            self.ready.insert(from, (number, lost));
            self.extend_deadline(now);
            if number > self.view.number + 1 && self.call.is_some() {
                // This member lacks a decision, and receives it as a reply.
                self.announce_to(from);
            }
            dead.into_iter().for_each(|rank| self.fail(rank, Evidence::ReportedDead, now));
        } else if number == self.view.number + 1 {
            self.vote(from, vote, now);
        }
        self.advance(now);
    }

    /// Ends the agreement in progress, or the next one, since another member has completed the last all-gather of the latest view.
    pub(super) fn finish(&mut self) {
        self.is_finished = true;
        if self.call.take().is_some() {
            self.outcome = Some(Outcome::Finished);
        }
    }

    pub(super) fn extend_deadline(&mut self, now: Time) {
        if let Some(call) = &mut self.call {
            call.deadline = now.saturating_add(call.patience);
        }
    }

    fn candidates(&self) -> Vec<Rank> {
        self.view.members.iter().copied().filter(|&rank| !self.is_failed(rank)).collect()
    }

    fn is_ready(&self, rank: Rank) -> bool {
        let is_in = |(number, _): &(u64, Vec<Rank>)| *number > self.view.number;
        self.call.is_some() && (rank == self.own || self.ready.get(&rank).is_some_and(is_in))
    }

    /// Notifies all members that this one takes part, and which members it considers as failed.
    fn announce(&mut self) {
        if self.call.is_some() {
            self.candidates().into_iter().for_each(|rank| self.announce_to(rank));
        }
    }

    fn announce_to(&mut self, rank: Rank) {
        if rank != self.own {
            let (dead, lost) = (self.failures.with(Evidence::Dead), self.lost_members());
            self.send(rank, Vote::Ready { dead, lost });
        }
    }

    /// Excludes members that this one would otherwise not consider as failed.
    fn exclude(&mut self, members: &[Rank], dead: &[Rank], now: Time) {
        for rank in self.candidates().into_iter().filter(|rank| !members.contains(rank)) {
            let evidence = if dead.contains(&rank) { Evidence::ReportedDead } else { Evidence::Lost };
            self.failures.add(rank, evidence, now);
            self.send(rank, Vote::Exclude);
        }
    }

    fn vote(&mut self, from: Rank, vote: Vote, now: Time) {
        let Some(call) = &mut self.call else { return };
        match vote {
            Vote::Prepare { ballot } if ballot > call.promised => {
                call.promised = ballot;
                call.pending = None;
                let acknowledged = call.acknowledged.clone();
                self.send(from, Vote::Promise { ballot, acknowledged });
            }
            Vote::Propose { ballot, members, dead }
                if ballot >= call.promised && members.contains(&self.own) =>
            {
                call.promised = ballot;
                call.pending = Some((ballot, members.clone()));
                self.exclude(&members, &dead, now);
            }
            Vote::Promise { ballot, acknowledged } => {
                if let Some(proposal) = call.proposal.as_mut().filter(|proposal| proposal.ballot == ballot) {
                    proposal.promises.insert(from, acknowledged);
                }
            }
            Vote::Acknowledge { ballot } => {
                if let Some(proposal) = call.proposal.as_mut().filter(|proposal| proposal.ballot == ballot) {
                    proposal.acknowledged.insert(from);
                }
            }
            Vote::Commit { members } => self.agree(&members, now),
            _ => {}
        }
    }

    /// Takes the steps that are due. Call it after every event, and when time has passed.
    pub(super) fn advance(&mut self, now: Time) {
        loop {
            self.acknowledge(now);
            self.propose(now);
            // Votes for itself do not leave this process.
            let Some(at) = self.outgoing.iter().position(|(to, ..)| *to == self.own) else { break };
            let (_, number, vote) = self.outgoing.remove(at).expect("it is there");
            if number == self.view.number + 1 {
                self.vote(self.own, vote, now);
            }
        }
        let Some(call) = &self.call else { return };
        let candidates = self.candidates();
        let is_dead =
            |rank| matches!(self.failures.evidence(rank), Some(Evidence::Dead | Evidence::ReportedDead));
        if self.is_excluded || !self.view.may_continue(&candidates, is_dead, call.minimum) {
            return self.end_partitioned();
        }
        let missing: Vec<_> = candidates.into_iter().filter(|&rank| !self.is_ready(rank)).collect();
        // Once all have called, a silent member is lost, and fenced, within a time that does not depend on the caller.
        let is_over = now >= call.deadline.saturating_add(SILENCE + 2 * FENCE);
        if now >= call.deadline && !missing.is_empty() {
            self.call = None;
            self.outcome = Some(Outcome::Missing(missing));
        } else if is_over {
            self.end_partitioned();
        }
    }

    fn end_partitioned(&mut self) {
        self.outcome = Some(Outcome::Partitioned { lost: self.lost_members() });
        self.call = None;
    }

    /// Acknowledges a proposal once the lost members that it excludes are fenced.
    fn acknowledge(&mut self, now: Time) {
        let Some(call) = &mut self.call else { return };
        let Some((ballot, members)) = &call.pending else { return };
        let mut excluded = self.view.members.iter().filter(|rank| !members.contains(rank));
        let is_fenced = |rank| self.failures.lost_since(rank).is_none_or(|since| now >= since + FENCE);
        if excluded.all(|&rank| is_fenced(rank)) {
            let ballot = *ballot;
            call.acknowledged = call.pending.take();
            self.send(ballot.1, Vote::Acknowledge { ballot });
        }
    }

    /// Takes the next step of the proposer, if this member is it.
    fn propose(&mut self, now: Time) {
        let candidates = self.candidates();
        let Some(call) = &mut self.call else { return };
        if candidates.first() != Some(&self.own) {
            call.proposal = None;
            return;
        }
        let Some(proposal) = call.proposal.as_mut().filter(|proposal| proposal.participants == candidates)
        else {
            return self.begin_ballot(candidates, now);
        };
        match &proposal.members {
            None if proposal.promises.len() == candidates.len() => {
                let latest = proposal.promises.values().flatten().max_by_key(|(ballot, _)| *ballot);
                let members = latest.map_or_else(|| candidates.clone(), |(_, members)| members.clone());
                let ballot = proposal.ballot;
                proposal.members = Some(members.clone());
                let dead = self.failures.with(Evidence::Dead);
                for to in candidates {
                    self.send(to, Vote::Propose { ballot, members: members.clone(), dead: dead.clone() });
                }
            }
            Some(members) => {
                let mut left = candidates.iter().filter(|rank| members.contains(rank));
                if left.all(|rank| proposal.acknowledged.contains(rank)) {
                    let members = members.clone();
                    for to in candidates.into_iter().skip(1) {
                        self.send(to, Vote::Commit { members: members.clone() });
                    }
                    self.agree(&members, now);
                }
            }
            None => {}
        }
    }

    /// Requests a promise of all members that have not failed, once they are ready.
    fn begin_ballot(&mut self, candidates: Vec<Rank>, now: Time) {
        if !candidates.iter().all(|&rank| self.is_ready(rank)) {
            return;
        }
        let all = candidates.len();
        let participants = self.without_broken_pairs(candidates);
        // Other members may not have lost it yet.
        if participants.len() < all && now < self.last_loss_at + SILENCE {
            return;
        }
        let is_dead = |rank| self.failures.evidence(rank) == Some(Evidence::Dead);
        let Some(call) = &mut self.call else { return };
        if !self.view.may_continue(&participants, is_dead, call.minimum) {
            return;
        }
        let ballot = (call.promised.0 + 1, self.own);
        call.proposal = Some(Proposal { ballot, participants: participants.clone(), ..Proposal::default() });
        let dead = self.failures.with(Evidence::Dead);
        self.exclude(&participants, &dead, now);
        participants.into_iter().for_each(|to| self.send(to, Vote::Prepare { ballot }));
    }

    fn lost_members(&self) -> Vec<Rank> {
        self.view.members.iter().copied().filter(|&rank| self.failures.lost_since(rank).is_some()).collect()
    }

    /// Removes members, the one with the most broken connections first, until every pair of the others can reach each other.
    fn without_broken_pairs(&self, mut candidates: Vec<Rank>) -> Vec<Rank> {
        let has_lost = |one: Rank, other: Rank| {
            self.ready.get(&one).is_some_and(|(_, lost)| one != other && lost.contains(&other))
        };
        loop {
            let broken = |&one: &Rank| {
                candidates.iter().filter(|&&other| has_lost(one, other) || has_lost(other, one)).count()
            };
            let Some(worst) = candidates.iter().copied().max_by_key(|rank| (broken(rank), *rank)) else {
                return candidates;
            };
            if broken(&worst) == 0 {
                return candidates;
            }
            candidates.retain(|&rank| rank != worst);
        }
    }

    fn agree(&mut self, members: &[Rank], now: Time) {
        self.exclude(members, &[], now);
        self.view = View { number: self.view.number + 1, members: members.to_vec() };
        (self.call, self.is_finished) = (None, false);
        self.outcome = Some(Outcome::Agreed(self.view.clone()));
    }
}
