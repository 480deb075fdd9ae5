//! Tests of an order of messages that the simulation does not produce.

use super::*;

const PATIENCE: Time = Time::from_secs(30);

/// Three members, and the messages in flight between them.
struct Members {
    all: Vec<Agreement>,
    sent: BTreeMap<(Rank, Rank), VecDeque<(u64, Vote)>>,
    now: Time,
}

impl Members {
    fn new() -> Self {
        Self {
            all: (0..3).map(|own| Agreement::new(own, 3)).collect(),
            sent: BTreeMap::new(),
            now: Time::ZERO,
        }
    }

    fn act(&mut self, rank: Rank, act: impl FnOnce(&mut Agreement, Time)) {
        act(&mut self.all[rank], self.now);
        while let Some((to, number, vote)) = self.all[rank].outgoing.pop_front() {
            self.sent.entry((rank, to)).or_default().push_back((number, vote));
        }
    }

    /// Delivers all messages from one member to another.
    fn deliver(&mut self, from: Rank, to: Rank) {
        for (number, vote) in self.sent.remove(&(from, to)).unwrap_or_default() {
            self.act(to, |member, now| member.handle(from, number, vote, now));
        }
    }

    fn lose(&mut self, rank: Rank, other: Rank) {
        self.act(rank, |member, now| member.fail(other, Evidence::Lost, now));
    }

    fn outcome(&mut self, rank: Rank) -> Option<Outcome> {
        self.all[rank].outcome.take()
    }
}

/// Rank 0 proposes all three members, and acknowledges its own proposal. It loses rank 1, which proposes to continue without it.
/// Rank 2 must then not promise the lower ballot of rank 0, or it would acknowledge both proposals.
#[test]
fn no_lower_ballot_is_promised_after_a_higher_one() {
    let mut members = Members::new();
    (0..3).for_each(|rank| members.act(rank, |member, now| member.call(now, PATIENCE, None)));
    let pairs = || (0..3).flat_map(|from| (0..3).map(move |to| (from, to)));
    pairs().for_each(|(from, to)| members.deliver(from, to));
    // Rank 0's ballot, and the promises. Its proposal does not arrive yet.
    [(0, 1), (0, 2), (1, 0), (2, 0)].into_iter().for_each(|(from, to)| members.deliver(from, to));
    members.lose(1, 0);
    members.deliver(1, 2);
    members.lose(0, 1);
    // Twice, since each message could be the reply to the other.
    [(0, 2), (2, 0), (0, 2), (2, 0)].into_iter().for_each(|(from, to)| members.deliver(from, to));
    assert_eq!(members.outcome(0), None, "rank 2 has not acknowledged its proposal");
    [(2, 1), (1, 2)].into_iter().for_each(|(from, to)| members.deliver(from, to));
    members.now += FENCE;
    members.act(2, Agreement::advance);
    [(2, 1), (1, 2), (2, 0)].into_iter().for_each(|(from, to)| members.deliver(from, to));
    let without_0 = Some(Outcome::Agreed(View { number: 1, members: vec![1, 2] }));
    assert_eq!([members.outcome(1), members.outcome(2)], [without_0.clone(), without_0]);
    assert_eq!(members.outcome(0), Some(Outcome::Partitioned { lost: vec![1, 2] }));
}

#[test]
fn longest_patience_has_no_deadline() {
    let mut members = Members::new();
    members.now = Time::from_secs(1);
    (0..2).for_each(|rank| members.act(rank, |member, now| member.call(now, Time::MAX, None)));
    members.deliver(1, 0);
    members.act(0, Agreement::advance);
    assert_eq!(members.outcome(0), None, "it waits for rank 2");
}

/// The all-gather of a member fails, and before its program calls again, it learns that another member has completed it.
#[test]
fn completion_that_becomes_known_between_two_calls_ends_the_next_one() {
    let mut member = Agreement::new(1, 3);
    member.agree(&[0, 1, 2], Time::ZERO);
    assert!(matches!(member.outcome.take(), Some(Outcome::Agreed(_))));
    member.finish();
    assert_eq!(member.outcome, None);
    member.fail(0, Evidence::Dead, Time::ZERO);
    member.call(Time::ZERO, PATIENCE, None);
    assert_eq!(member.outcome.take(), Some(Outcome::Finished));
}

#[test]
fn time_in_which_the_process_did_not_run_is_not_waited() {
    let mut member = Agreement::new(1, 3);
    member.call(Time::ZERO, PATIENCE, None);
    let later = 100 * PATIENCE;
    member.extend_deadline(later);
    member.advance(later);
    assert_eq!(member.outcome, None);
    member.advance(later + PATIENCE);
    assert!(matches!(member.outcome, Some(Outcome::Missing(_))));
}
