//! A cache of recent kinds of call and their plans.

use std::collections::HashMap;

use unisono_collectives::partition::Partition;

use crate::call::{Call, Ran};
use crate::codes::Codes;
use crate::executor::Bound;
use crate::select::Choice;

/// The largest number of kinds, and of operations of their programs, which take about 50 MB. When one is reached, all kinds are dropped, and
/// those in use are computed again.
const MAX: usize = 4096;
const MAX_OPERATIONS: usize = 1 << 18;

/// The key of a kind of call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    choice: Choice,
    call: Call,
    parts: Option<Partition>,
}

impl Kind {
    pub(super) fn of(choice: &Choice, call: &Call, parts: Option<&Partition>) -> Self {
        Self { choice: choice.clone(), call: *call, parts: parts.cloned() }
    }
}

/// The recent kinds of call, by their index.
///
/// Most calls repeat the previous kind, or follow the same kind as last time, since programs repeat sequences of calls. Both are found
/// by comparisons, without hashing.
#[derive(Debug, Default)]
pub(super) struct RecentCalls {
    pub(super) kinds: Vec<Recent>,
    /// The number of operations of their programs.
    operations: usize,
    places: HashMap<Kind, usize>,
    latest: usize,
}

impl RecentCalls {
    /// Returns the index of the latest call, if it was of this kind.
    #[inline]
    pub(super) fn latest(&self, choice: &Choice, call: &Call, parts: Option<&Partition>) -> Option<usize> {
        self.kinds
            .get(self.latest)
            .is_some_and(|kind| kind.matches(choice, call, parts))
            .then_some(self.latest)
    }

    /// Finds a kind other than the latest one, and makes it the latest.
    pub(super) fn find(&mut self, choice: &Choice, call: &Call, parts: Option<&Partition>) -> Option<usize> {
        let next = self.kinds.get(self.latest)?.next;
        let is_next = self.kinds.get(next).is_some_and(|kind| kind.matches(choice, call, parts));
        let place = if is_next { next } else { *self.places.get(&Kind::of(choice, call, parts))? };
        self.change_to(place);
        Some(place)
    }

    /// Adds a new kind as the latest one, and returns its index. The indices of other kinds may change.
    pub(super) fn insert(&mut self, kind: Kind, ran: Ran, bound: Bound) -> usize {
        let operations = bound.operations();
        if self.kinds.len() == MAX || self.operations + operations > MAX_OPERATIONS {
            *self = Self::default();
        }
        self.operations += operations;
        let place = self.kinds.len();
        self.places.insert(kind.clone(), place);
        let codes = Codes::new(&kind.call, ran.method);
        self.kinds.push(Recent { kind, ran, codes, bound, next: 0 });
        self.change_to(place);
        place
    }

    fn change_to(&mut self, place: usize) {
        self.kinds[self.latest].next = place;
        self.latest = place;
    }
}

/// A kind of call, with everything that is computed once per kind.
#[derive(Debug)]
pub(super) struct Recent {
    kind: Kind,
    pub(super) ran: Ran,
    pub(super) codes: Codes,
    pub(super) bound: Bound,
    /// The index of the kind that followed it last time.
    next: usize,
}

impl Recent {
    #[inline]
    fn matches(&self, choice: &Choice, call: &Call, parts: Option<&Partition>) -> bool {
        let own = &self.kind;
        own.call == *call && own.choice == *choice && own.parts.as_ref() == parts
    }
}

#[cfg(test)]
mod tests {
    use unisono_collectives::{Algorithm, Topology};

    use super::super::ending::tests::engine;
    use super::*;
    use crate::dtype::DType;
    use crate::kernels::ReduceOp;

    fn call(count: usize) -> Call {
        Call::all_reduce(DType::F32, ReduceOp::Sum, count)
    }

    #[test]
    fn hundreds_of_alternating_kinds_stay_cached() {
        let (mut engine, _folder) = engine();
        let mut compiled = 0;
        for round in 0..3 {
            for count in 0..300 {
                let is_cached = engine.recent.latest(&Choice::Auto, &call(count), None).is_some()
                    || engine.recent.find(&Choice::Auto, &call(count), None).is_some();
                compiled += usize::from(!is_cached);
                engine.selection(&Choice::Auto, &call(count), None);
                assert_eq!(engine.recent.kinds[engine.recent.latest].kind.call, call(count));
            }
            assert_eq!((compiled, engine.recent.kinds.len()), (300, 300), "round {round}");
        }
    }

    #[test]
    fn size_of_all_programs_is_bounded() {
        let (mut engine, _folder) = engine();
        engine.topology = Topology::single_node(4097);
        let (ring, steps) = (Choice::from(Algorithm::Ring), 2 * 4096);
        for count in 0..=MAX_OPERATIONS / steps {
            engine.selection(&ring, &call(count), None);
        }
        let RecentCalls { kinds, operations, .. } = &engine.recent;
        assert_eq!((kinds.len(), *operations), (1, steps));
    }

    #[test]
    fn number_of_kinds_is_bounded() {
        let (mut engine, _folder) = engine();
        for count in 0..=MAX {
            engine.selection(&Choice::Auto, &call(count), None);
            engine.selection(&Choice::Auto, &call(0), None);
        }
        let RecentCalls { kinds, places, .. } = &engine.recent;
        assert_eq!((kinds.len(), places.len()), (2, 2));
        assert_eq!(kinds[engine.recent.latest].kind.call, call(0));
    }
}
