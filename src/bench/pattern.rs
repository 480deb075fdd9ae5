//! Inputs whose reductions are exact in every element type, so that any order of additions gives the same
//! bits and the tolerance is zero.

use unisono_collectives::Rank;

use crate::dtype::Element;
use crate::reduce::{self, ReduceOp};

/// What every rank brings and what all must end with. Both repeat along the array with a short period.
pub(super) struct Pattern<T> {
    op: ReduceOp,
    ranks: usize,
    results: Vec<T>,
}

impl<T: Element + From<u8>> Pattern<T> {
    pub(super) fn new(op: ReduceOp, ranks: usize) -> Self {
        let result = |index| {
            let inputs = (0..ranks).map(|rank| input(op, ranks, rank, index));
            let exact = match op {
                ReduceOp::Sum | ReduceOp::Mean => inputs.sum(),
                ReduceOp::Min => inputs.min().unwrap_or(0),
                ReduceOp::Max => inputs.max().unwrap_or(0),
                ReduceOp::Product => inputs.product(),
            };
            let mut result = [T::from(exact)];
            if op == ReduceOp::Mean {
                reduce::divide(T::DTYPE, bytemuck::cast_slice_mut(&mut result), ranks);
            }
            result[0]
        };
        Self { op, ranks, results: (0..period(op, ranks)).map(result).collect() }
    }

    /// Writes a rank's input.
    ///
    /// This and the check are not inlined: what they leave in the caches is what an all-reduce begins with, and it should not
    /// change with the code around them (seen: a fifth of the time of 2 MiB).
    #[inline(never)]
    pub(super) fn fill(&self, buffer: &mut [T], rank: Rank) {
        let inputs: Vec<_> =
            (0..self.results.len()).map(|index| T::from(input(self.op, self.ranks, rank, index))).collect();
        for chunk in buffer.chunks_mut(inputs.len()) {
            chunk.copy_from_slice(&inputs[..chunk.len()]);
        }
    }

    /// How many elements are not what they must be.
    #[inline(never)]
    pub(super) fn count_wrong(&self, buffer: &[T]) -> u64 {
        let wrong = |chunk: &[T]| {
            chunk.iter().zip(&self.results).filter(|(found, expected)| found != expected).count()
        };
        buffer.chunks(self.results.len()).map(wrong).sum::<usize>() as u64
    }
}

/// Sums stay below 2^8, the largest integer up to which bf16 has all.
const LARGEST: usize = 255;

/// What a rank brings at an index.
fn input(op: ReduceOp, ranks: usize, rank: Rank, index: usize) -> u8 {
    let period = period(op, ranks);
    match op {
        // At most seven ranks bring a 2.
        ReduceOp::Product => 1 + u8::from((rank + index).is_multiple_of(period)),
        _ if rank >= LARGEST => 0,
        _ => ((7 * rank + 13 * index + rank * index) % period) as u8,
    }
}

fn period(op: ReduceOp, ranks: usize) -> usize {
    match op {
        ReduceOp::Product => ranks.div_ceil(7),
        _ => (LARGEST / ranks.min(LARGEST) + 1).min(11),
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn every_reduction_is_exact_in_the_least_exact_type() {
        for ranks in [1, 2, 3, 5, 8, 64, 255, 1000] {
            for op in [ReduceOp::Sum, ReduceOp::Product] {
                for index in 0..period(op, ranks) {
                    let inputs: Vec<_> = (0..ranks).map(|rank| input(op, ranks, rank, index)).collect();
                    let exact: u64 = match op {
                        ReduceOp::Sum => inputs.iter().map(|&input| u64::from(input)).sum(),
                        _ => inputs.iter().map(|&input| u64::from(input)).product(),
                    };
                    assert!(exact <= LARGEST as u64, "{op} over {ranks}");
                }
            }
        }
    }

    #[test]
    fn a_wrong_element_is_counted() {
        let pattern = Pattern::<bf16>::new(ReduceOp::Max, 1);
        let mut buffer = [bf16::ZERO; 30];
        pattern.fill(&mut buffer, 0);
        assert_eq!(pattern.count_wrong(&buffer), 0);
        buffer[29] += bf16::ONE;
        assert_eq!(pattern.count_wrong(&buffer), 1);
    }
}
