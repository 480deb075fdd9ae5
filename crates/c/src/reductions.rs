//! Reductions: built-in ones, and custom ones by functions of the program.

use std::ffi::{c_char, c_int, c_void};

use unisono::{Custom, DType, ReduceOp, fail_reduction, with_type};

use super::comm::{out, required_text};
use super::errors::{Result, argument, guarded};
use super::values;

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

/// Reduces `right` into `left`, element by element: `left[i] = left[i] ∘ right[i]`, for `count` elements. Returns 0, or anything else if
/// it failed, which loses the communicator: the call returns UNISONO_ERROR_FAILED on this rank. It is called on the thread that makes
/// the call, or on the communicator's thread for a non-blocking call; and on several threads at once if several communicators are used
/// at once.
pub type Reduce = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        left: *mut c_void,
        right: *const c_void,
        count: usize,
    ) -> c_int,
>;

/// The number of the first custom reduction. Those of the library are below.
const FIRST: c_int = 256;

pub(crate) fn op(number: c_int) -> Result<ReduceOp> {
    let of_library = usize::try_from(number).ok().and_then(|place| ReduceOp::ALL.get(place).copied());
    let of_program =
        || Custom::numbered(u16::try_from(number.checked_sub(FIRST)?).ok()?).map(ReduceOp::Custom);
    of_library.or_else(of_program).ok_or_else(|| {
        argument(format!(
            "{number} is not a reduction: use UNISONO_SUM and so on, or a number that unisono_reduction_create returned"
        ))
    })
}

struct Function {
    name: String,
    reduce: unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_void, usize) -> c_int,
    context: *mut c_void,
}

// SAFETY: the program guarantees that the function may be called from any thread, and on several at once.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Calls the function. An error ends the call of the library.
    fn call<T>(&self, left: &mut [T], right: &[T], count: usize) {
        let (left, right) = (left.as_mut_ptr().cast(), right.as_ptr().cast());
        // SAFETY: both arrays have this many elements, which the library guarantees to reductions, and the function accesses only
        // these, as the caller of `unisono_reduction_create` promises.
        let code = unsafe { (self.reduce)(self.context, left, right, count) };
        if code != 0 {
            fail_reduction(format!("the function of the reduction `{}` returned {code}", self.name));
        }
    }
}

/// Defines a reduction by a function of the program, and writes its number, which is the `op` argument of calls, to `op`.
///
/// Its elements are of type `dtype`; or, if `element_bytes` is not 0, of that size in bytes (a power of two, at most 64), of any alignment,
/// in arrays of UNISONO_U8, whose `count` is in bytes: rank r's own part is then of whole elements, `element_bytes` times that of
/// `unisono_own_part` for the number of elements.
///
/// The function must be associative. Results are x0 ∘ x1 ∘ … in the order of ranks unless `is_commutative` is not 0; algorithms
/// that do not keep this order are not chosen for it, and refused if they are named. All ranks define the same function with the
/// same name. Calls with reductions of different names, types or commutativity are UNISONO_ERROR_MISMATCH. The definition is kept
/// until the process ends: define a reduction once, not for every call.
///
/// # Safety
/// The name must be a string, the pointer to `op` valid for writing, and the function safe to call with `context` from any thread, and on
/// several at once, until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_reduction_create(
    name: *const c_char,
    dtype: c_int,
    element_bytes: usize,
    is_commutative: c_int,
    function: Reduce,
    context: *mut c_void,
    op: *mut c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises, for both.
        let (name, op) =
            unsafe { (required_text(name, "the name of a reduction")?, out(op, "the reduction")?) };
        let reduce = function.ok_or_else(|| argument("the function of a reduction is NULL"))?;
        let function = Function { name: name.to_owned(), reduce, context };
        let made = define(function, values::dtype(dtype)?, element_bytes, is_commutative != 0)?;
        let ReduceOp::Custom(custom) = made else { unreachable!("a function of the program") };
        *op = FIRST + c_int::from(custom.number());
        Ok(())
    })
}

fn define(function: Function, dtype: DType, element_bytes: usize, is_commutative: bool) -> Result<ReduceOp> {
    let name = function.name.clone();
    if element_bytes == 0 {
        return with_type!(dtype, T => {
            Ok(ReduceOp::custom(&name, is_commutative, move |left: &mut [T], right: &[T]| {
                function.call(left, right, left.len());
            }))
        });
    }
    if dtype != DType::U8 {
        return Err(argument(format!(
            "elements of {element_bytes} bytes are of UNISONO_U8, and not of {dtype}"
        )));
    }
    let size = u16::try_from(element_bytes).ok().filter(|size| size.is_power_of_two() && *size <= 64);
    let size = size.ok_or_else(|| {
        argument(format!("elements have 1, 2, 4, 8, 16, 32 or 64 bytes, and not {element_bytes}"))
    })?;
    Ok(ReduceOp::custom_bytes(&name, size, is_commutative, move |left, right| {
        function.call(left, right, left.len() / element_bytes);
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_header() {
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
        assert!(op(-1).is_err() && op(11).is_err() && op(FIRST + 1000).is_err());
    }
}
