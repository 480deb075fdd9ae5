//! Simulates a whole world in one function call: evaluates the plans of all ranks on real values, without threads or messages.
//!
//! The order of additions is the schedule's, so every transport must produce the same result, to the last bit.

use crate::plan::Plan;
use crate::program::{self, Program};

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
    let programs: Vec<_> = plans.iter().map(|plan| Program::of_schedule(&plan.flattened())).collect();
    program::run(&programs, inputs, reduce)
        .unwrap_or_else(|defects| panic!("the plans do not finish: {defects:?}"))
}
