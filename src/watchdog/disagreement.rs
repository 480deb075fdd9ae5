//! Detects ranks in different calls with the same sequence number, and ranks that wait for each other in a group and in its world.
//! If such ranks share no memory and send each other no messages, both would otherwise wait until their deadlines.

use std::collections::HashMap;

use unisono_collectives::Rank;

use crate::record::{Doing, State};

/// The shortest time in a call before it is compared, since reports of other nodes are slightly old.
const SETTLED_S: f64 = 1.0;

/// Returns the calls of two ranks that are in different calls with the same number. Each rank has its activity and, if its node is
/// silent, the seconds of silence.
pub(super) fn disagreement(ranks: &[(Doing, Option<f64>)]) -> Option<String> {
    let is_inside = |doing: &&Doing| doing.state == State::Inside && doing.since_s > SETTLED_S;
    let now = ranks.iter().filter(|(_, silent_s)| silent_s.is_none()).map(|(doing, _)| doing);
    let mut first = HashMap::new();
    now.filter(is_inside).find_map(|other| {
        let one = *first.entry(other.sequence()).or_insert(other);
        let (call, called) = (one.last.as_ref()?, other.last.as_ref()?);
        let differ = !call.is_same_call(called);
        differ.then(|| format!("rank {} called {call}, but rank {} called {called}", one.rank, other.rank))
    })
}

/// Returns a rank of a deadlock between different calls, at least one of which is in a group, and the calls of two of its ranks.
/// The arguments are as above.
///
/// The states of other nodes are of different moments, so only a lasting one is a deadlock.
pub(super) fn deadlock(ranks: &[(Doing, Option<f64>)]) -> Option<(Rank, String)> {
    let known: HashMap<_, _> = ranks
        .iter()
        .filter(|(_, silent_s)| silent_s.is_none())
        .map(|(doing, _)| (doing.rank, doing))
        .collect();
    // Returns the call in which a rank waits, and the awaited rank.
    let wait = |rank: Rank| {
        let doing = known.get(&rank)?;
        if doing.state == State::Inside {
            let last = doing.last.as_ref().filter(|_| doing.since_s > SETTLED_S && !doing.continues)?;
            return Some((last.to_string(), last.waits_for?));
        }
        let group = doing.group.as_ref().filter(|group| group.since_s > SETTLED_S)?;
        Some((group.call.clone(), group.waits_for))
    };
    let in_groups = ranks.iter().map(|(doing, _)| doing).filter(|doing| doing.group.is_some());
    in_groups.filter(|doing| doing.state != State::Inside).find_map(|&Doing { rank, .. }| {
        let (call, mut next) = wait(rank)?;
        let mut different = None;
        for _ in 0..known.len() {
            if next == rank {
                let (other, called) = different?;
                let cause = format!("rank {rank} called {call}, but rank {other} called {called}");
                return Some((rank, cause));
            }
            let (called, after) = wait(next)?;
            different = different.or_else(|| (called != call).then_some((next, called)));
            next = after;
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::super::warning::doing;
    use super::*;
    use crate::record::GroupWait;

    /// Returns a rank that waits for another, in a group or in the world.
    fn waits(rank: Rank, other: Rank, group: Option<&str>) -> (Doing, Option<f64>) {
        let state = if group.is_some() { State::Outside } else { State::Inside };
        let (mut doing, silent_s) = doing(rank, state, 17, 3.0);
        doing.last.as_mut().unwrap().waits_for = Some(other);
        doing.group = group.map(|call| GroupWait { call: call.to_owned(), waits_for: other, since_s: 3.0 });
        (doing, silent_s)
    }

    #[test]
    fn mutual_waits_in_a_group_and_its_world_are_a_deadlock() {
        let (world, group) = (None, Some("barrier #3, in a group of ranks [0, 2]"));
        let expected = "rank 0 called barrier #3, in a group of ranks [0, 2], but rank 2 called all-reduce #17 of 8 f32, by ring";
        let ring = [waits(0, 2, group), waits(1, 0, world), waits(2, 1, world)];
        assert_eq!(deadlock(&ring), Some((0, expected.to_owned())));
        let comes_later = [waits(0, 2, group), waits(2, 1, world)];
        assert_eq!(deadlock(&comes_later), None, "rank 1 may compute");
        let among_themselves = [waits(0, 2, group), waits(1, 2, world), waits(2, 1, world)];
        assert_eq!(deadlock(&among_themselves), None, "they can go on without rank 0");
        let in_one_call = [waits(0, 2, group), waits(2, 0, group)];
        assert_eq!(deadlock(&in_one_call), None);
        let mut in_flight = ring.clone();
        in_flight[2].0.continues = true;
        assert_eq!(deadlock(&in_flight), None, "rank 2 may still call the barrier");
        let mut lately = ring.clone();
        lately[2].0.since_s = 0.5;
        assert_eq!(deadlock(&lately), None);
    }

    #[test]
    fn different_calls_with_the_same_number_are_reported() {
        let mut ranks = vec![
            doing(0, State::Inside, 18, 9.0),
            doing(1, State::Inside, 17, 3.0),
            doing(2, State::Inside, 17, 3.0),
            doing(3, State::Inside, 17, 3.0),
        ];
        assert_eq!(disagreement(&ranks), None);
        ranks[3].0.last.as_mut().unwrap().count = 9;
        let expected = "rank 1 called all-reduce #17 of 8 f32, by ring, but rank 3 called all-reduce #17 of 9 f32, by ring";
        assert_eq!(disagreement(&ranks).as_deref(), Some(expected));
        for changed in [
            (doing(3, State::Inside, 18, 3.0).0, None),
            (doing(3, State::Outside, 17, 3.0).0, None),
            (Doing { since_s: 0.5, ..ranks[3].0.clone() }, None),
            (ranks[3].0.clone(), Some(20.0)),
        ] {
            let ranks = [ranks[1].clone(), changed];
            assert_eq!(disagreement(&ranks), None);
        }
    }

    #[test]
    fn label_that_a_node_has_lost_is_no_difference() {
        let labelled = |rank, label: Option<&str>| {
            let (mut doing, silent_s) = doing(rank, State::Inside, 17, 3.0);
            doing.last.as_mut().unwrap().label = label.map(str::to_owned);
            (doing, silent_s)
        };
        let (one, another) = (Some("bucket 1"), Some("bucket 2"));
        assert_eq!(disagreement(&[labelled(0, one), labelled(1, None)]), None);
        assert_eq!(disagreement(&[labelled(0, None), labelled(1, one)]), None);
        assert!(disagreement(&[labelled(0, one), labelled(1, another)]).is_some());
    }
}
