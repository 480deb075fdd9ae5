//! Arrays of the program: element types, reductions and pointers.

use std::ffi::c_void;

use unisono::{DType, Element, ReduceOp};
use unisono_bindings::Lent;

use super::errors::{Result, argument};
use super::reductions;

/// 32-bit float.
pub const UNISONO_F32: i32 = 0;
/// 64-bit float.
pub const UNISONO_F64: i32 = 1;
/// IEEE 754 half precision.
pub const UNISONO_F16: i32 = 2;
/// bfloat16.
pub const UNISONO_BF16: i32 = 3;
/// Signed 32-bit integer.
pub const UNISONO_I32: i32 = 4;
/// Signed 64-bit integer.
pub const UNISONO_I64: i32 = 5;
/// Unsigned 8-bit integer.
pub const UNISONO_U8: i32 = 6;
/// Unsigned 32-bit integer.
pub const UNISONO_U32: i32 = 7;
/// Unsigned 64-bit integer.
pub const UNISONO_U64: i32 = 8;

/// Adds. Integers wrap around.
pub const UNISONO_SUM: i32 = 0;
/// Adds, and divides by the number of ranks.
pub const UNISONO_MEAN: i32 = 1;
/// The smaller value; NaN if either is.
pub const UNISONO_MIN: i32 = 2;
/// The larger value; NaN if either is.
pub const UNISONO_MAX: i32 = 3;
/// Multiplies. Integers wrap around.
pub const UNISONO_PRODUCT: i32 = 4;
/// The bits that are set in both integers.
pub const UNISONO_BIT_AND: i32 = 5;
/// The bits that are set in either integer.
pub const UNISONO_BIT_OR: i32 = 6;
/// The bits that are set in exactly one of the integers.
pub const UNISONO_BIT_XOR: i32 = 7;
/// 1 if both integers are nonzero, else 0.
pub const UNISONO_LOGICAL_AND: i32 = 8;
/// 1 if either integer is nonzero, else 0.
pub const UNISONO_LOGICAL_OR: i32 = 9;
/// 1 if exactly one of the integers is nonzero, else 0.
pub const UNISONO_LOGICAL_XOR: i32 = 10;

/// The element type with this number.
pub(crate) fn dtype(number: i32) -> Result<DType> {
    let found = usize::try_from(number).ok().and_then(|number| DType::ALL.get(number));
    found
        .copied()
        .ok_or_else(|| argument(format!("{number} is not an element type: UNISONO_F32 and so on are")))
}

/// The reduction with this number.
pub(crate) fn op(number: i32) -> Result<ReduceOp> {
    let found = usize::try_from(number).ok().and_then(|number| ReduceOp::ALL.get(number).copied());
    found.or_else(|| reductions::numbered(number)).ok_or_else(|| {
        argument(format!(
            "{number} is not a reduction: UNISONO_SUM and so on are, and what unisono_reduction_create defines"
        ))
    })
}

/// An array of the program's.
///
/// # Errors
/// If there cannot be such an array at this address.
///
/// # Safety
/// As [`Lent::new`].
pub(crate) unsafe fn lent<T: Element>(data: *mut c_void, count: usize) -> Result<Lent<T>> {
    // SAFETY: as the caller promises.
    unsafe { Lent::new(data, count) }.map_err(argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        let types = [
            (UNISONO_F32, DType::F32),
            (UNISONO_F64, DType::F64),
            (UNISONO_F16, DType::F16),
            (UNISONO_BF16, DType::BF16),
            (UNISONO_I32, DType::I32),
            (UNISONO_I64, DType::I64),
            (UNISONO_U8, DType::U8),
            (UNISONO_U32, DType::U32),
            (UNISONO_U64, DType::U64),
        ];
        assert_eq!(types.map(|(_, dtype)| dtype), DType::ALL);
        for (number, expected) in types {
            assert_eq!(dtype(number).unwrap(), expected);
        }
        let ops = [
            (UNISONO_SUM, ReduceOp::Sum),
            (UNISONO_MEAN, ReduceOp::Mean),
            (UNISONO_MIN, ReduceOp::Min),
            (UNISONO_MAX, ReduceOp::Max),
            (UNISONO_PRODUCT, ReduceOp::Product),
            (UNISONO_BIT_AND, ReduceOp::BitAnd),
            (UNISONO_BIT_OR, ReduceOp::BitOr),
            (UNISONO_BIT_XOR, ReduceOp::BitXor),
            (UNISONO_LOGICAL_AND, ReduceOp::LogicalAnd),
            (UNISONO_LOGICAL_OR, ReduceOp::LogicalOr),
            (UNISONO_LOGICAL_XOR, ReduceOp::LogicalXor),
        ];
        assert_eq!(ops.map(|(_, op)| op), ReduceOp::ALL);
        assert!(ops.into_iter().all(|(number, expected)| op(number).unwrap() == expected));
        assert!(dtype(9).is_err() && dtype(-1).is_err() && op(11).is_err());
    }
}
