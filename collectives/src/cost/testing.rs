//! Checks the closed forms in the documentation of algorithms.

use crate::{Algorithm, Operation, Topology};

/// The closed form in an algorithm's documentation.
pub(crate) struct Form {
    pub(crate) steps: usize,
    /// The traffic of the rank that sends most, as a fraction of the array.
    pub(crate) sent: (usize, usize),
}

/// Counts the all-reduce of every world of up to 64 ranks, and compares the counts with the form.
pub(crate) fn check(algorithm: Algorithm, form: impl Fn(usize) -> Form) {
    for ranks in 1..=64 {
        let plans = algorithm.plans(Operation::AllReduce, &Topology::single_node(ranks)).unwrap();
        let cost = super::count(&plans).expect("the plans finish");
        let Form { steps, sent: (numerator, denominator) } = form(ranks);
        assert_eq!(cost.steps, steps, "{algorithm}, {ranks} ranks: steps");
        assert_eq!(
            cost.sent_chunks * denominator,
            numerator * cost.chunk_count,
            "{algorithm}, {ranks} ranks: {} of {} chunks sent, not {numerator}/{denominator}",
            cost.sent_chunks,
            cost.chunk_count
        );
    }
}

pub(crate) fn log2_ceil(ranks: usize) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}
