//! Checks MPI's own reductions, which are not always correct: Open MPI 4 saturates sums of bytes at 255 and loses NaNs, and MPICH 4
//! compares unsigned integers as signed ones. Calls with an incorrect reduction are refused.

use super::sys::{Comm, library_version, reduce_local};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::{ReduceOp, kernel};

/// The repetitions of all pairs of values in one array, so that MPI's vector instructions process each pair.
const REPEATS: usize = 5;

/// The reductions of MPI that disagree with Unisono's, by type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) struct Reductions {
    /// A bit for each type and reduction, set if it is incorrect.
    wrong: u128,
}

impl Reductions {
    /// Tests all reductions by `MPI_Reduce_local`, which gives the results of the collectives, with and without vector instructions. All ranks call
    /// it, since they must refuse the same calls, but MPI's behaviour may differ between their processors.
    ///
    /// It takes 0.05 ms with Open MPI 4.1.4, and a few milliseconds with MPICH 4.0.2.
    pub(super) fn tested(comm: Comm) -> Result<Self> {
        let mut own = 0_u128;
        for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_half()) {
            for op in of_mpi().filter(|op| op.is_defined_for(dtype)) {
                own |= u128::from(example(dtype, op)?.is_some()) << place(dtype, op);
            }
        }
        let all = comm.all_gather(&own.to_ne_bytes())?;
        let (all, _) = all.as_chunks();
        Ok(Self { wrong: all.iter().fold(0, |wrong, of_rank| wrong | u128::from_ne_bytes(*of_rank)) })
    }

    /// # Errors
    /// [`Error::Unsupported`], on all ranks, if MPI has no such reduction, or an incorrect one.
    pub(in crate::transport) fn check(self, dtype: DType, op: ReduceOp) -> Result<()> {
        let why = match self.wrong >> place(dtype, op) & 1 {
            _ if dtype.is_half() => format!("have no {op} of {dtype}"),
            0 => return Ok(()),
            _ => {
                // It may be incorrect only on the processor of another rank.
                let example = example(dtype, op).ok().flatten();
                let example = example.map_or(String::new(), |example| format!(" ({example})"));
                let op = if op == ReduceOp::Mean { "sum, and so the mean," } else { op.name() };
                format!("compute the {op} of {dtype} incorrectly{example}")
            }
        };
        Err(Error::Unsupported(format!(
            "MPI's own collectives ({}) {why}; choose another algorithm",
            library_version()
        )))
    }
}

/// Returns the reductions of MPI. A mean is computed as a sum.
fn of_mpi() -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(|&op| op != ReduceOp::Mean)
}

fn place(dtype: DType, op: ReduceOp) -> usize {
    let op = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
    let place = of_mpi().position(|known| known == op).expect("MPI has all reductions except custom ones");
    dtype as usize * ReduceOp::ALL.len() + place
}

/// Returns a pair of values that MPI reduces differently, if there is one: "255 and 1 make 255, not 0".
fn example(dtype: DType, op: ReduceOp) -> Result<Option<String>> {
    match dtype {
        DType::F32 => example_of(&F32, dtype, op),
        DType::F64 => example_of(&F64, dtype, op),
        DType::I32 => example_of(&[0, 1, -1, 14, i32::MAX, i32::MIN], dtype, op),
        DType::I64 => example_of(&[0, 1, -1, 14, 1 << 31, u32::MAX.into(), i64::MAX, i64::MIN], dtype, op),
        DType::U8 => example_of(&[0, 1, 14, 127, 128, 200, u8::MAX], dtype, op),
        DType::U32 => example_of(&[0, 1, 14, 1 << 31, u32::MAX >> 1, u32::MAX], dtype, op),
        DType::U64 => example_of(&[0, 1, 14, 1 << 31, 1 << 63, u32::MAX.into(), u64::MAX], dtype, op),
        DType::F16 | DType::BF16 => Ok(None),
    }
}

const F32: [f32; 9] =
    [0.0, -0.0, 1.0, -1.5, f32::from_bits(1), f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
const F64: [f64; 9] =
    [0.0, -0.0, 1.0, -1.5, f64::from_bits(1), f64::MAX, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];

fn example_of<T: bytemuck::Pod + PartialOrd + std::fmt::Debug>(
    values: &[T],
    dtype: DType,
    op: ReduceOp,
) -> Result<Option<String>> {
    let pairs = values.iter().flat_map(|&one| values.iter().map(move |&other| (one, other)));
    let pairs: Vec<_> = std::iter::repeat_n(pairs, REPEATS).flatten().collect();
    let (arrived, held): (Vec<T>, Vec<T>) = pairs.iter().copied().unzip();
    let (mut by_mpi, mut expected) = (held.clone(), held.clone());
    reduce_local(bytemuck::cast_slice_mut(&mut by_mpi), bytemuck::cast_slice(&arrived), dtype, op)?;
    kernel(dtype, op)(bytemuck::cast_slice_mut(&mut expected), bytemuck::cast_slice(&arrived));
    // Elements are also reduced one by one, like the last elements of an array.
    let singles = values.len() * values.len();
    let mut one_by_one = held[..singles].to_vec();
    for (held, arrived) in one_by_one.iter_mut().zip(&arrived) {
        reduce_local(bytemuck::bytes_of_mut(held), bytemuck::bytes_of(arrived), dtype, op)?;
    }
    let wrong = |by_mpi: &[T]| {
        let mut all = pairs.iter().zip(by_mpi.iter().zip(&expected));
        let found = all.find(|(_, (by_mpi, expected))| !are_equal(*by_mpi, *expected));
        found.map(|((one, other), (by_mpi, expected))| {
            format!("{one:?} and {other:?} make {by_mpi:?}, not {expected:?}")
        })
    };
    Ok(wrong(&by_mpi).or_else(|| wrong(&one_by_one)))
}

/// Returns whether two values have the same bits, or are both NaN.
fn are_equal<T: bytemuck::Pod + PartialOrd>(one: &T, other: &T) -> bool {
    let is_nan = |value: &T| value.partial_cmp(value).is_none();
    is_nan(one) && is_nan(other) || bytemuck::bytes_of(one) == bytemuck::bytes_of(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_and_reduction_has_a_bit_and_a_mean_counts_as_a_sum() {
        let places: std::collections::HashSet<_> =
            DType::ALL.into_iter().flat_map(|dtype| of_mpi().map(move |op| place(dtype, op))).collect();
        assert!(
            places.len() == DType::ALL.len() * of_mpi().count() && places.iter().all(|&place| place < 128)
        );
        assert_eq!(place(DType::U8, ReduceOp::Mean), place(DType::U8, ReduceOp::Sum));
        let reductions = Reductions { wrong: 1 << place(DType::U8, ReduceOp::Sum) };
        assert!(reductions.check(DType::U8, ReduceOp::Max).is_ok());
        assert!(matches!(reductions.check(DType::F16, ReduceOp::Max), Err(Error::Unsupported(_))));
    }

    #[test]
    fn nans_are_equal_and_signed_zeros_are_not() {
        assert!(are_equal(&f32::NAN, &-f32::NAN) && !are_equal(&0.0, &-0.0) && are_equal(&7, &7));
    }
}
