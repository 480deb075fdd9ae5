//! Checks before NCCL is called, and NCCL's names of types and reductions.

use std::ops::Range;

use crate::dtype::DType;
use crate::kernels::ReduceOp;
use crate::nccl::sys;

/// Returns the number of elements in this many bytes.
pub(super) fn count(size_bytes: usize, dtype: DType) -> usize {
    let whole = size_bytes.is_multiple_of(dtype.size_bytes());
    assert!(
        whole,
        "{size_bytes} bytes are not a whole number of {dtype}, of {} bytes each",
        dtype.size_bytes()
    );
    size_bytes / dtype.size_bytes()
}

/// Returns whether all parts have the same length.
///
/// # Panics
/// If there is not one part for each rank, in order and without gaps, that together are all elements.
pub(super) fn equal_parts(parts: &[Range<usize>], ranks: usize, count: usize) -> bool {
    assert!(parts.len() == ranks, "{} parts for {ranks} ranks", parts.len());
    let mut end = 0;
    for (part, rank) in parts.iter().zip(0..) {
        let follows = part.start == end && part.end >= part.start;
        assert!(
            follows,
            "the part {part:?} of rank {rank} must begin at {end}, and not end before it begins"
        );
        end = part.end;
    }
    assert!(end == count, "the parts end at {end}, but there are {count} elements");
    parts.iter().all(|part| part.len() == parts[0].len())
}

pub(super) fn data_type(dtype: DType) -> sys::ncclDataType_t {
    match dtype {
        DType::F32 => sys::ncclFloat32,
        DType::F64 => sys::ncclFloat64,
        DType::F16 => sys::ncclFloat16,
        DType::BF16 => sys::ncclBfloat16,
        DType::I32 => sys::ncclInt32,
        DType::I64 => sys::ncclInt64,
        DType::U8 => sys::ncclUint8,
        DType::U32 => sys::ncclUint32,
        DType::U64 => sys::ncclUint64,
    }
}

/// Converts a reduction to NCCL's.
///
/// # Panics
/// For a reduction that NCCL does not have: the choice of the method leaves it to the host.
pub(super) fn reduction(op: ReduceOp) -> sys::ncclRedOp_t {
    match op {
        ReduceOp::Sum => sys::ncclSum,
        ReduceOp::Mean => sys::ncclAvg,
        ReduceOp::Min => sys::ncclMin,
        ReduceOp::Max => sys::ncclMax,
        ReduceOp::Product => sys::ncclProd,
        op => unreachable!("NCCL has no {op}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_part_lengths_are_detected() {
        assert!(equal_parts(&[0..3, 3..6], 2, 6));
        assert!(!equal_parts(&[0..3, 3..5], 2, 5));
        assert!(!equal_parts(&[0..0, 0..1], 2, 1));
        assert!(equal_parts(&[0..2, 2..4, 4..6], 3, 6));
    }

    #[test]
    fn wrong_parts_and_lengths_are_refused_with_their_numbers() {
        let refused = |check: fn()| {
            let panic = std::panic::catch_unwind(check).unwrap_err();
            panic.downcast_ref::<String>().unwrap().clone()
        };
        assert!(refused(|| _ = equal_parts(&[0..3, 3..4], 3, 4)).contains("2 parts for 3 ranks"));
        assert!(refused(|| _ = equal_parts(&[0..3, 4..6], 2, 6)).contains("4..6 of rank 1"));
        assert!(refused(|| _ = equal_parts(&[0..3, 3..5], 2, 6)).contains("end at 5"));
        assert!(refused(|| _ = count(10, DType::F32)).contains("10 bytes"));
    }

    #[test]
    fn every_type_has_a_distinct_number() {
        let mut numbers = DType::ALL.map(data_type);
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    }
}
