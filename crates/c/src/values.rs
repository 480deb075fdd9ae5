//! Arrays of the program: element types and pointers.

use std::ffi::c_void;

use unisono::{DType, Element};
use unisono_bindings::Lent;

use super::errors::{Result, argument};

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

pub(crate) fn dtype(number: i32) -> Result<DType> {
    let found = usize::try_from(number).ok().and_then(|number| DType::ALL.get(number));
    found
        .copied()
        .ok_or_else(|| argument(format!("{number} is not an element type: use UNISONO_F32 and so on")))
}

/// Returns a list of the program.
///
/// # Safety
/// The pointer must be null or to this many elements, all of which outlive the result.
pub(crate) unsafe fn list<'a, T>(list: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    match (count, list.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(argument(format!("the list of {what} is NULL"))),
        _ if count > isize::MAX as usize / size_of::<T>() => {
            Err(argument(format!("no list has {count} {what}")))
        }
        // SAFETY: as the caller promises.
        _ => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
    }
}

/// Returns an array of the program.
///
/// # Errors
/// If such an array cannot exist at this address.
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
    fn numbers_match_the_header() {
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
        assert!(dtype(9).is_err() && dtype(-1).is_err());
    }
}
