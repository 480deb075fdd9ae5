//! A whole world in one function call: evaluates the plans of all ranks on real values, without threads or messages.
//!
//! The order of additions is the schedule's, so every transport must produce the same result, to the last bit.

use std::marker::PhantomData;

use crate::interpret::{self, Event, Values};
use crate::partition::elements;
use crate::plan::Plan;
use crate::schedule::Chunks;

/// Returns the final buffer of every rank after running the plans of all ranks (rank 0's first) on `inputs`.
///
/// `reduce(left, right)` is the operation on one element. All inputs have the same length.
///
/// ```
/// use unisono_collectives::{Algorithm, Operation, Topology, simulate};
///
/// let plans = Algorithm::Ring.plans(Operation::AllReduce, &Topology::single_node(3)).unwrap();
/// let inputs = vec![vec![1, 2, 3, 4], vec![10, 20, 30, 40], vec![100, 200, 300, 400]];
/// let outputs = simulate::run(&plans, &inputs, |held, arrived| held + arrived);
/// assert_eq!(outputs, vec![vec![111, 222, 333, 444]; 3]);
/// ```
///
/// # Panics
/// If the numbers of inputs and plans differ, or the inputs' lengths; or if the plans are defective ([`crate::verify()`]
/// describes how).
pub fn run<T: Copy>(plans: &[Plan], inputs: &[Vec<T>], reduce: impl Fn(T, T) -> T) -> Vec<Vec<T>> {
    assert_eq!(plans.len(), inputs.len(), "one input for each rank");
    let count = inputs.first().map_or(0, Vec::len);
    assert!(inputs.iter().all(|input| input.len() == count), "all inputs have the same length");

    let schedules: Vec<_> = plans.iter().map(Plan::flattened).collect();
    let cut = |(input, plan): (&Vec<T>, &Plan)| -> Vec<Vec<T>> {
        let chunk = |chunk| input[elements(count, plan.chunk_count(), Chunks::one(chunk))].to_vec();
        (0..plan.chunk_count()).map(chunk).collect()
    };
    let chunks = inputs.iter().zip(plans).map(cut).collect();
    let outcome = interpret::run(&schedules, chunks, &mut Elementwise::new(reduce));
    assert!(outcome.waiting.is_empty() && outcome.mismatched.is_empty(), "the plans do not finish");
    outcome.buffers.into_iter().map(|chunks| chunks.concat()).collect()
}

/// Arrays that are reduced element by element.
pub(crate) struct Elementwise<T, F>(F, PhantomData<T>);

impl<T, F: Fn(T, T) -> T> Elementwise<T, F> {
    pub(crate) fn new(reduce: F) -> Self {
        Self(reduce, PhantomData)
    }
}

impl<T: Copy, F: Fn(T, T) -> T> Values for Elementwise<T, F> {
    type Value = Vec<T>;

    fn reduce(&mut self, at: Event, held: &mut Vec<T>, arrived: &Vec<T>) {
        for (held, arrived) in held.iter_mut().zip(arrived) {
            let (left, right) = at.combine.operands(*held, *arrived);
            *held = (self.0)(left, right);
        }
    }
}
