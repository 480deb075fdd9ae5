//! Detects ranks in different calls with the same sequence number. If they share no memory and neither sends to the other, no
//! message would show it, and both would wait until their deadlines.

use std::collections::HashMap;

use crate::record::{Doing, State};

/// How long a rank must have been in a call: news of other nodes is slightly old.
const SETTLED_S: f64 = 1.0;

/// The calls of two ranks that are in different calls with the same number, given what ranks are doing, and for how many seconds
/// each has not been heard of.
pub(super) fn disagreement(ranks: &[(Doing, Option<f64>)]) -> Option<String> {
    let is_inside = |doing: &&Doing| doing.state == State::Inside && doing.since_s > SETTLED_S;
    let inside =
        || ranks.iter().filter(|(_, heard)| heard.is_none()).map(|(doing, _)| doing).filter(is_inside);
    let called = |doing: &Doing| doing.last.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut first = HashMap::new();
    let (one, other) = inside().find_map(|other| {
        let one = *first.entry(other.sequence()).or_insert(other);
        (called(one) != called(other)).then_some((one, other))
    })?;
    Some(format!(
        "rank {} called {}, but rank {} called {}",
        one.rank,
        called(one),
        other.rank,
        called(other)
    ))
}

#[cfg(test)]
mod tests {
    use super::super::warning::tests::doing;
    use super::*;

    #[test]
    fn ranks_in_different_calls_of_one_number_disagree() {
        let mut ranks = vec![
            doing(0, State::Inside, 18, 9.0),
            doing(1, State::Inside, 17, 3.0),
            doing(2, State::Inside, 17, 3.0),
            doing(3, State::Inside, 17, 3.0),
        ];
        assert_eq!(disagreement(&ranks), None);
        ranks[3].0.last.as_mut().unwrap().count = 9;
        let said = "rank 1 called all-reduce #17 of 8 f32, by ring, but rank 3 called all-reduce #17 of 9 f32, by ring";
        assert_eq!(disagreement(&ranks).as_deref(), Some(said));
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
}
