//! Ranks that are in different calls at the same place of the order. Where they share no memory and neither is to send the other anything,
//! both would wait to their deadlines, and no message would tell them.

use std::collections::HashMap;

use crate::record::{Doing, State};

/// How long a rank must have been in a call: what is heard of another node is about a moment ago.
const SETTLED_S: f64 = 1.0;

/// What two ranks have called, if they are in different calls of the same number; of what ranks do, or did so many seconds ago
/// where it was not heard of them since.
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
