//! Inputs and expected results of each operation. Reductions of the inputs are exact in every element type, so any order of
//! additions gives the same bits and the tolerance is zero. The inputs include values on which implementations differ: sums that
//! wrap around, integers that are large when read as unsigned, and NaNs in comparisons.

use std::ops::Range;

use unisono::internals::divide;
use unisono::{Call, DType, Element, Operation, Rank, ReduceOp};
use unisono_collectives::{Chunks, partition};

/// The input of a rank, and its expected result. Both repeat along the array with a short period.
pub(super) struct Pattern<T> {
    inputs: Vec<T>,
    results: Vec<Part<T>>,
}

/// The expected values of some elements. Elements in no part are undefined.
struct Part<T> {
    elements: Range<usize>,
    /// One period of values, starting at the first element of the part.
    values: Vec<T>,
}

impl<T: Element + From<u8>> Pattern<T> {
    pub(super) fn new(call: &Call, rank: Rank, ranks: usize) -> Self {
        let inputs = Inputs { op: call.op, ranks };
        let period = |value: &dyn Fn(usize) -> T, from: usize| -> Vec<T> {
            (from..from + inputs.whole_period::<T>()).map(value).collect()
        };
        let given = |giver: Rank, from: usize| period(&|index| inputs.value(giver, index), from);
        let of =
            |giver: Rank, elements: Range<usize>, from: usize| Part { elements, values: given(giver, from) };
        let reduced_of = |givers: Range<Rank>, elements: Range<usize>| {
            let values = period(&|index| inputs.reduced(givers.clone(), index), elements.start);
            Part { elements, values }
        };
        let reduced = |elements: Range<usize>| reduced_of(0..ranks, elements);
        let part = |rank| partition::elements(call.count, ranks, Chunks::one(rank));
        let all = 0..call.count;
        let results = match call.operation {
            Operation::AllReduce => vec![reduced(all)],
            Operation::ReduceScatter => vec![reduced(part(rank))],
            Operation::AllGather => {
                (0..ranks).map(|giver| of(giver, part(giver), part(giver).start)).collect()
            }
            Operation::Broadcast { root } => vec![of(root, all, 0)],
            Operation::AllToAll => (0..ranks).map(|giver| of(giver, part(giver), part(rank).start)).collect(),
            Operation::Reduce { root } if root == rank => vec![reduced(all)],
            Operation::Gather { root } if root == rank => {
                (0..ranks).map(|giver| of(giver, part(giver), part(giver).start)).collect()
            }
            Operation::Scan => vec![reduced_of(0..rank + 1, all)],
            Operation::ExclusiveScan if rank > 0 => vec![reduced_of(0..rank, all)],
            Operation::Scatter { root } if root == rank => vec![of(root, all, 0)],
            Operation::Scatter { root } => vec![of(root, part(rank), part(rank).start)],
            Operation::Reduce { .. } | Operation::Gather { .. } | Operation::ExclusiveScan => Vec::new(),
        };
        Self { inputs: given(rank, 0), results }
    }

    /// Writes the input of the rank.
    ///
    /// This and the check are not inlined: they determine the state of the caches at the start of a call, which should not
    /// depend on the surrounding code (inlining changed the time of 2 MiB by a fifth).
    #[inline(never)]
    pub(super) fn fill(&self, buffer: &mut [T]) {
        for chunk in buffer.chunks_mut(self.inputs.len()) {
            chunk.copy_from_slice(&self.inputs[..chunk.len()]);
        }
    }

    #[inline(never)]
    pub(super) fn count_wrong(&self, buffer: &[T]) -> u64 {
        let is_nan = |value: &T| value.ne(value);
        let is_wrong = |found: &T, expected: &T| found != expected && !(is_nan(found) && is_nan(expected));
        let wrong_in = |chunk: &[T], values: &[T]| {
            // Usually all are right. A slow check would affect the time of the next call.
            if *chunk == values[..chunk.len()] {
                return 0;
            }
            chunk.iter().zip(values).filter(|(found, expected)| is_wrong(found, expected)).count()
        };
        let wrong = |Part { elements, values }: &Part<T>| {
            buffer[elements.clone()].chunks(values.len()).map(|chunk| wrong_in(chunk, values)).sum::<usize>()
        };
        self.results.iter().map(wrong).sum::<usize>() as u64
    }
}

/// The largest sum: bf16 represents all integers up to 2^8.
const LARGEST: usize = 255;
/// The period of values that are only moved. Up to a few hundred ranks have different values at an index, and a rank has different
/// values at indices that are closer than this prime number.
const MOVED_PERIOD: usize = 251;

/// The period of bitwise and logical reductions: prime, so that worlds of few ranks have every pair of values.
const BITS_PERIOD: usize = 23;

/// Returns the value at a place of the period: few of the places clear or set a bit, or have a false or true value.
fn of_a_few_bits(op: ReduceOp, place: usize) -> u8 {
    let bit = 1_u8.checked_shl(place as u32).unwrap_or(0);
    match op {
        ReduceOp::BitAnd => !bit,
        ReduceOp::LogicalAnd => 2 * u8::from(place > 2),
        ReduceOp::LogicalOr => 2 * u8::from(place < 3),
        _ => bit,
    }
}

struct Inputs {
    /// The reduction, unless values are only moved.
    op: Option<ReduceOp>,
    ranks: usize,
}

impl Inputs {
    /// Returns the small integer of a rank at an index.
    fn at(&self, rank: Rank, index: usize) -> u8 {
        let period = self.period();
        let value = match self.op {
            None => 101 * rank + index,
            // At most seven ranks have a 2.
            Some(ReduceOp::Product) => return 1 + u8::from((rank + index).is_multiple_of(period)),
            Some(op) if !op.is_defined_for(DType::F64) => return of_a_few_bits(op, (rank + index) % period),
            Some(_) if rank >= LARGEST => return 0,
            Some(_) => 7 * rank + 13 * index + rank * index,
        };
        (value % period) as u8
    }

    fn period(&self) -> usize {
        match self.op {
            None => MOVED_PERIOD,
            Some(ReduceOp::Product) => self.ranks.div_ceil(7),
            Some(op) if !op.is_defined_for(DType::F64) => BITS_PERIOD,
            Some(_) => (LARGEST / self.ranks.min(LARGEST) + 1).min(11),
        }
    }

    fn value<T: Element + From<u8>>(&self, rank: Rank, index: usize) -> T {
        of_bits(self.bits::<T>(rank, index % self.whole_period::<T>()))
    }

    /// Returns the bits of the value of a rank at a place of the period: a small integer, or all bits set.
    fn bits<T: Element>(&self, rank: Rank, place: usize) -> u64 {
        let specials = self.specials::<T>();
        if place < specials && rank == self.giver(place) {
            return u64::MAX;
        }
        self.at(rank, place.checked_sub(specials).unwrap_or(place)).into()
    }

    /// Returns the number of elements after which the pattern repeats.
    fn whole_period<T: Element>(&self) -> usize {
        self.specials::<T>() + self.period()
    }

    /// Returns the number of indices at which one rank has a value with all bits set: the largest unsigned integer, -1 if signed,
    /// or a NaN. Sums have none, since a NaN would reveal less than a number.
    fn specials<T: Element>(&self) -> usize {
        match self.op {
            None => 0,
            Some(ReduceOp::Min | ReduceOp::Max) => 2,
            Some(_) if T::DTYPE.is_float() => 0,
            Some(_) => 2,
        }
    }

    /// Returns the rank with this special value: the first, then the last, since a comparison may lose a NaN on one side only.
    fn giver(&self, special: usize) -> Rank {
        if special == 0 { 0 } else { self.ranks - 1 }
    }

    /// Returns the reduction of the values of some ranks at an index.
    fn reduced<T: Element + From<u8>>(&self, givers: Range<Rank>, index: usize) -> T {
        let place = index % self.whole_period::<T>();
        let inputs = givers.map(move |rank| self.bits::<T>(rank, place));
        let has_nan = T::DTYPE.is_float() && inputs.clone().any(|input| input == u64::MAX);
        // All bits set are the largest unsigned integer, and -1 if signed.
        let is_signed = matches!(T::DTYPE, DType::I32 | DType::I64);
        let order = |input: &u64| input.wrapping_add(u64::from(is_signed));
        // The lower bits of sums and products are the same in all widths, signed and unsigned.
        let bits = match self.op {
            None | Some(ReduceOp::Sum | ReduceOp::Mean) => inputs.fold(0, u64::wrapping_add),
            Some(ReduceOp::Product) => inputs.fold(1, u64::wrapping_mul),
            Some(ReduceOp::Min | ReduceOp::Max) if has_nan => u64::MAX,
            Some(ReduceOp::Min) => inputs.min_by_key(order).unwrap_or(0),
            Some(ReduceOp::Max) => inputs.max_by_key(order).unwrap_or(0),
            // A single value is not reduced.
            Some(op) => inputs.reduce(|held, input| on_bits(op, held, input)).unwrap_or(0),
        };
        let mut result = [of_bits::<T>(bits)];
        if self.op == Some(ReduceOp::Mean) {
            divide(T::DTYPE, bytemuck::cast_slice_mut(&mut result), self.ranks);
        }
        result[0]
    }
}

fn on_bits(op: ReduceOp, one: u64, other: u64) -> u64 {
    let (is_one, is_other) = (one != 0, other != 0);
    match op {
        ReduceOp::BitAnd => one & other,
        ReduceOp::BitOr => one | other,
        ReduceOp::BitXor => one ^ other,
        ReduceOp::LogicalAnd => u64::from(is_one && is_other),
        ReduceOp::LogicalOr => u64::from(is_one || is_other),
        ReduceOp::LogicalXor => u64::from(is_one != is_other),
        _ => unreachable!("{op} is not of bits"),
    }
}

/// Returns the value with these bits, truncated to its size; as a float, a NaN if all are set, and otherwise the small integer.
fn of_bits<T: Element + From<u8>>(bits: u64) -> T {
    if T::DTYPE.is_float() && bits != u64::MAX {
        return T::from(bits as u8);
    }
    let size_bytes = size_of::<T>();
    let bits = if cfg!(target_endian = "big") { bits << (64 - 8 * size_bytes) } else { bits };
    bytemuck::pod_read_unaligned(&bits.to_ne_bytes()[..size_bytes])
}

#[cfg(test)]
mod tests {
    use unisono::half::bf16;

    use super::*;

    #[test]
    fn reductions_are_exact_in_the_least_precise_type() {
        for ranks in [1, 2, 3, 5, 8, 64, 255, 1000] {
            for op in [ReduceOp::Sum, ReduceOp::Product] {
                let inputs = Inputs { op: Some(op), ranks };
                for index in 0..inputs.period() {
                    let inputs = (0..ranks).map(|rank| u64::from(inputs.at(rank, index)));
                    let exact: u64 = if op == ReduceOp::Sum { inputs.sum() } else { inputs.product() };
                    assert!(exact <= LARGEST as u64, "{op} over {ranks}");
                }
            }
        }
    }

    /// Returns the number of wrong elements in a world of three ranks that reduces in this way.
    fn count_wrong<T: Element + From<u8>>(op: ReduceOp, reduce: impl Fn(T, T) -> T) -> u64 {
        let call = Call::all_reduce(T::DTYPE, op, 50);
        let of_rank = |rank| {
            let mut inputs = vec![T::from(0); call.count];
            Pattern::new(&call, rank, 3).fill(&mut inputs);
            inputs
        };
        let mut reduced = of_rank(0);
        for rank in 1..3 {
            reduced.iter_mut().zip(of_rank(rank)).for_each(|(held, arrived)| *held = reduce(*held, arrived));
        }
        Pattern::new(&call, 0, 3).count_wrong(&reduced)
    }

    #[test]
    fn deviations_of_vendors_are_detected() {
        assert_eq!(count_wrong(ReduceOp::Sum, u8::wrapping_add), 0);
        assert!(count_wrong(ReduceOp::Sum, u8::saturating_add) > 0);
        assert_eq!(count_wrong(ReduceOp::Max, u64::max), 0);
        let signed = |one: u64, other: u64| one.cast_signed().max(other.cast_signed()).cast_unsigned();
        assert!(count_wrong(ReduceOp::Max, signed) > 0);
        let signed = |one: u8, other: u8| one.cast_signed().min(other.cast_signed()).cast_unsigned();
        assert!(count_wrong(ReduceOp::Min, signed) > 0);
        assert_eq!(count_wrong(ReduceOp::Min, i32::min), 0);
        assert!(count_wrong(ReduceOp::Min, |one: f32, other| if one < other { one } else { other }) > 0);
        assert!(count_wrong(ReduceOp::Min, |one: f32, other| if other < one { other } else { one }) > 0);
        let larger = |one: f32, other: f32| if one.is_nan() || one > other { one } else { other };
        assert_eq!(count_wrong(ReduceOp::Max, larger), 0);
        assert_eq!(count_wrong(ReduceOp::Product, i64::wrapping_mul), 0);
        assert_eq!(count_wrong(ReduceOp::Sum, |one: f64, other| one + other), 0);
        assert_eq!(count_wrong(ReduceOp::BitAnd, |one: u8, other| one & other), 0);
        assert!(count_wrong(ReduceOp::BitAnd, |one: u8, other| one | other) > 0);
        assert_eq!(count_wrong(ReduceOp::BitXor, |one: i64, other| one ^ other), 0);
        assert!(count_wrong(ReduceOp::BitXor, |one: i64, other| one | other) > 0);
        let all = |one: u32, other: u32| u32::from(one != 0 && other != 0);
        assert_eq!(count_wrong(ReduceOp::LogicalAnd, all), 0);
        assert!(count_wrong(ReduceOp::LogicalAnd, |one: u32, other| one & other) > 0);
        assert!(count_wrong(ReduceOp::LogicalOr, all) > 0);
    }

    #[test]
    fn moved_values_identify_their_source() {
        let inputs = Inputs { op: None, ranks: 64 };
        for rank in 1..64 {
            assert_ne!(inputs.at(rank, 5), inputs.at(0, 5));
            assert_ne!(inputs.at(rank, 5 + rank), inputs.at(rank, 5));
        }
    }

    /// Returns the correct result of each rank, computed naively.
    fn carried_out(call: &Call, patterns: &[Pattern<bf16>]) -> Vec<Vec<bf16>> {
        let ranks = patterns.len();
        let begin = |pattern: &Pattern<bf16>| {
            let mut buffer = vec![bf16::ZERO; call.count];
            pattern.fill(&mut buffer);
            buffer
        };
        let given: Vec<_> = patterns.iter().map(begin).collect();
        let owner = |index| {
            let owns =
                |&rank: &usize| partition::elements(call.count, ranks, Chunks::one(rank)).contains(&index);
            (0..ranks).find(owns).expect("every element is some rank's own")
        };
        let block = call.count / ranks;
        let result = |rank: usize, index: usize| match call.operation {
            Operation::Scan => given[..=rank].iter().map(|given| given[index]).sum(),
            Operation::ExclusiveScan => given[..rank].iter().map(|given| given[index]).sum(),
            _ if call.operation.reduces() => given.iter().map(|given| given[index]).sum(),
            Operation::Broadcast { root } | Operation::Scatter { root } => given[root][index],
            Operation::AllToAll => given[index / block][rank * block + index % block],
            _ => given[owner(index)][index],
        };
        (0..ranks).map(|rank| (0..call.count).map(|index| result(rank, index)).collect()).collect()
    }

    /// Returns the operations on arrays.
    fn on_arrays() -> impl Iterator<Item = crate::Operation> {
        Operation::all(0).into_iter().map(crate::Operation::from)
    }

    #[test]
    fn right_results_pass_and_wrong_elements_are_counted() {
        for (operation, ranks) in on_arrays().flat_map(|it| [(it, 2), (it, 3), (it, 5)]) {
            let call = operation.call(DType::BF16, ReduceOp::Sum, 2 * 1501, ranks);
            let patterns: Vec<_> = (0..ranks).map(|rank| Pattern::new(&call, rank, ranks)).collect();
            for (rank, mut result) in carried_out(&call, &patterns).into_iter().enumerate() {
                let (pattern, what) = (&patterns[rank], format!("{operation}, rank {rank} of {ranks}"));
                assert_eq!(pattern.count_wrong(&result), 0, "{what}");
                for Part { elements, .. } in &pattern.results {
                    for broken in [elements.start, elements.end - 1] {
                        result[broken] += bf16::ONE;
                        assert_eq!(pattern.count_wrong(&result), 1, "{what}, element {broken}");
                        result[broken] -= bf16::ONE;
                    }
                }
                let known = pattern.results.iter().map(|part| part.elements.len()).sum::<usize>();
                let expected = match (call.operation, rank) {
                    (Operation::ReduceScatter, _) | (Operation::Scatter { .. }, 1..) => {
                        partition::elements(call.count, ranks, Chunks::one(rank)).len()
                    }
                    (Operation::Reduce { .. } | Operation::Gather { .. }, 1..)
                    | (Operation::ExclusiveScan, 0) => 0,
                    _ => call.count,
                };
                assert_eq!(known, expected, "{what}");
            }
        }
    }

    /// A call that does nothing is detected on every rank that should receive values.
    #[test]
    fn skipped_call_is_detected() {
        for operation in on_arrays() {
            let ranks = 3;
            let call = operation.call(DType::BF16, ReduceOp::Sum, 6000, ranks);
            let wrong = (0..ranks).map(|rank| {
                let pattern = Pattern::<bf16>::new(&call, rank, ranks);
                let mut buffer = vec![bf16::ZERO; call.count];
                pattern.fill(&mut buffer);
                pattern.count_wrong(&buffer)
            });
            let noticed = wrong.filter(|&wrong| wrong > 900).count();
            let expected = match call.operation {
                // The first rank keeps its own buffer, or receives nothing.
                Operation::Broadcast { .. }
                | Operation::Scatter { .. }
                | Operation::Scan
                | Operation::ExclusiveScan => 2,
                Operation::Reduce { .. } | Operation::Gather { .. } => 1,
                _ => 3,
            };
            assert_eq!(noticed, expected, "{operation}");
        }
    }
}
