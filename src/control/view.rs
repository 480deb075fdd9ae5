//! Views: the members that agree, and which of them may continue.

use std::collections::BTreeMap;

use unisono_collectives::Rank;

use super::Time;

/// Members that have agreed on each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct View {
    /// 0 for all ranks of the world.
    pub(crate) number: u64,
    /// In ascending order.
    pub(crate) members: Vec<Rank>,
}

/// The reason why a member counts as failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// Its process has ended. This process has detected it.
    Dead,
    /// Its process has ended. Another member has reported it.
    ReportedDead,
    /// It is silent, excludes this process, or is excluded by it. Its process may still run.
    Lost,
}

/// The members that count as failed, and since when. It only grows.
#[derive(Debug, Default)]
pub(crate) struct Failures(BTreeMap<Rank, (Evidence, Time)>);

impl Failures {
    /// Adds a failed member. Returns whether it is new. A lost member stays lost, since its process may have acknowledged a view
    /// without this one before it ended.
    pub(super) fn add(&mut self, rank: Rank, evidence: Evidence, now: Time) -> bool {
        let known = self.0.get(&rank).map(|(evidence, _)| *evidence);
        let is_better = known == Some(Evidence::ReportedDead) && evidence == Evidence::Dead;
        if known.is_none() || is_better {
            self.0.insert(rank, (evidence, now));
        }
        known.is_none()
    }

    pub(super) fn evidence(&self, rank: Rank) -> Option<Evidence> {
        self.0.get(&rank).map(|(evidence, _)| *evidence)
    }

    /// Returns when a member was lost, if it counts as lost.
    pub(super) fn lost_since(&self, rank: Rank) -> Option<Time> {
        self.0.get(&rank).filter(|(evidence, _)| *evidence == Evidence::Lost).map(|(_, since)| *since)
    }

    /// Returns the members whose failure has this evidence.
    pub(super) fn with(&self, evidence: Evidence) -> Vec<Rank> {
        self.0.iter().filter(|(_, (known, _))| *known == evidence).map(|(rank, _)| *rank).collect()
    }
}

impl View {
    /// Returns whether `survivors` may continue without the other members. They must be more than half of the members that are not
    /// dead, or exactly half with the lowest of these. `minimum`, if given, replaces this rule.
    ///
    /// Lost members count, since they may be alive on the other side of a divided network. Dead members do not, not even as
    /// survivors: if one of five members is dead and the others are divided in halves, each half and the dead one would be more
    /// than half of five.
    pub(super) fn may_continue(
        &self,
        survivors: &[Rank],
        is_dead: impl Fn(Rank) -> bool,
        minimum: Option<usize>,
    ) -> bool {
        if let Some(minimum) = minimum {
            return survivors.len() >= minimum;
        }
        let rest: Vec<_> = self.members.iter().copied().filter(|&rank| !is_dead(rank)).collect();
        let twice = 2 * survivors.len();
        twice > rest.len()
            || twice == rest.len() && rest.first().is_some_and(|lowest| survivors.contains(lowest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_halves_may_continue() {
        for members in 1..=6_usize {
            let view = View { number: 0, members: (0..members).collect() };
            let subset = |bits: usize| (0..members).filter(|rank| bits >> rank & 1 == 1).collect::<Vec<_>>();
            // Each half has detected some of the dead.
            for (one, other) in
                (0..1 << members).flat_map(|one| (0..1 << members).map(move |other| (one, other)))
            {
                if one & other != 0 {
                    continue;
                }
                let dead = ((1 << members) - 1) & !(one | other);
                for known in (0..=dead).filter(|known| known & !dead == 0) {
                    let may = |half, known: usize| {
                        half != 0 && view.may_continue(&subset(half), |rank| known >> rank & 1 == 1, None)
                    };
                    assert!(
                        !(may(one, known) && may(other, dead)),
                        "{one:b} {other:b}, dead {dead:b}, {known:b}"
                    );
                }
            }
        }
    }

    #[test]
    fn survivors_of_dead_members_continue() {
        let view = View { number: 0, members: vec![0, 1, 2, 3] };
        assert!(view.may_continue(&[3], |rank| rank != 3, None));
        assert!(view.may_continue(&[0, 3], |_| false, None));
        assert!(!view.may_continue(&[1, 2], |_| false, None));
        assert!(
            view.may_continue(&[1, 2], |_| false, Some(2)) && !view.may_continue(&[2], |_| true, Some(2))
        );
    }
}
