//! Arrays of the program: element types, reductions and pointers.

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};

use unisono::{DType, Element, ReduceOp};

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

/// The element type with this number.
pub(crate) fn dtype(number: i32) -> Result<DType> {
    let found = usize::try_from(number).ok().and_then(|number| DType::ALL.get(number));
    found
        .copied()
        .ok_or_else(|| argument(format!("{number} is not an element type: UNISONO_F32 and so on are")))
}

/// The reduction with this number.
pub(crate) fn op(number: i32) -> Result<ReduceOp> {
    let found = usize::try_from(number).ok().and_then(|number| ReduceOp::ALL.get(number));
    found.copied().ok_or_else(|| argument(format!("{number} is not a reduction: UNISONO_SUM and so on are")))
}

/// Evaluates an expression with `$type` as the Rust type of a [`DType`].
macro_rules! with_type {
    ($dtype:expr, $type:ident => $body:expr) => {
        with_type!(@ $dtype, $type => $body, F32 f32, F64 f64, F16 unisono::half::f16, BF16 unisono::half::bf16, I32 i32, I64 i64,
            U8 u8, U32 u32, U64 u64)
    };
    (@ $dtype:expr, $type:ident => $body:expr, $($name:ident $rust:ty),*) => {
        match $dtype {
            $(unisono::DType::$name => {
                type $type = $rust;
                $body
            })*
        }
    };
}

pub(crate) use with_type;

/// An array that the program lends for the duration of a call. It is the program's, so dropping it frees nothing.
#[derive(Debug)]
pub(crate) struct Lent<T> {
    start: *mut T,
    count: usize,
}

// SAFETY: elements are plain data, and while the array is lent, the program leaves it alone on all threads.
unsafe impl<T: Element> Send for Lent<T> {}

impl<T: Element> Lent<T> {
    /// # Errors
    /// If there cannot be such an array at this address.
    ///
    /// # Safety
    /// If not null, the pointer must be to `count` elements that the program leaves alone until the call is done.
    pub(crate) unsafe fn new(data: *mut c_void, count: usize) -> Result<Self> {
        let start = data.cast::<T>();
        let size = count.checked_mul(size_of::<T>()).filter(|&size| size <= isize::MAX as usize);
        if size.is_none() {
            return Err(argument(format!("{count} {} exceed the address space", T::DTYPE)));
        }
        if count == 0 {
            return Ok(Self { start: std::ptr::dangling_mut(), count });
        }
        if start.is_null() {
            return Err(argument(format!("the array of {count} {} is NULL", T::DTYPE)));
        }
        if !start.is_aligned() {
            let (address, needs) = (data.addr(), align_of::<T>());
            return Err(argument(format!(
                "the array at {address:#x} is not aligned to {needs} bytes, as {} needs",
                T::DTYPE
            )));
        }
        Ok(Self { start, count })
    }
}

impl<T: Element> Deref for Lent<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` has checked the address and the size, and its caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }
}

impl<T: Element> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; the array is lent to this call alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.count) }
    }
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
            with_type!(expected, T => assert_eq!(T::DTYPE, expected));
        }
        let ops = [
            (UNISONO_SUM, ReduceOp::Sum),
            (UNISONO_MEAN, ReduceOp::Mean),
            (UNISONO_MIN, ReduceOp::Min),
            (UNISONO_MAX, ReduceOp::Max),
            (UNISONO_PRODUCT, ReduceOp::Product),
        ];
        assert_eq!(ops.map(|(_, op)| op), ReduceOp::ALL);
        assert!(ops.into_iter().all(|(number, expected)| op(number).unwrap() == expected));
        assert!(dtype(9).is_err() && dtype(-1).is_err() && op(5).is_err());
    }

    #[test]
    fn addresses_are_checked() {
        let mut values = [0_u64; 2];
        let data = values.as_mut_ptr().cast::<c_void>();
        // SAFETY: the array has two elements; what is refused is not accessed.
        unsafe {
            assert_eq!(Lent::<u64>::new(data, 2).unwrap().len(), 2);
            assert!(Lent::<u64>::new(data.byte_add(1), 1).is_err());
            assert!(Lent::<u64>::new(data, usize::MAX).is_err());
            assert!(Lent::<u64>::new(std::ptr::null_mut(), 1).is_err());
            assert!(Lent::<u64>::new(std::ptr::null_mut(), 0).unwrap().is_empty());
        }
    }
}
