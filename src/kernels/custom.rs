//! Reductions that the program defines.

use std::fmt;
use std::num::NonZero;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{PoisonError, RwLock};

use unisono_collectives::Combine;
use xxhash_rust::xxh3::xxh3_64;

use super::ReduceOp;
use crate::dtype::{DType, Element};

/// A reduction that the program defines, made by [`ReduceOp::custom`]. Two are equal if they were made by one call.
///
/// It is a number, since a [`Call`](crate::Call) contains it and is compared before every collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Custom(u16);

/// Reduces the second array into the first one, as their left and right operands.
type Function = dyn Fn(&mut [u8], &[u8]) + Send + Sync;

/// A function of the program and its properties.
pub(crate) struct Definition {
    name: &'static str,
    dtype: DType,
    /// The number of values of `dtype` in an element.
    width: u16,
    is_commutative: bool,
    /// A hash of all of the above.
    fingerprint: u64,
    reduce: Box<Function>,
}

// After a panic of the function, only the program's own data may be inconsistent, which it shares with the function.
impl UnwindSafe for Definition {}
impl RefUnwindSafe for Definition {}

static ALL: RwLock<Vec<&Definition>> = RwLock::new(Vec::new());

/// The largest untyped element. Messages are divided at multiples of this size only.
const MAX_BYTES: u16 = 64;
/// The number of bytes copied at a time for a left operand: a number of whole elements.
const LEFT_BYTES: usize = 4096;

impl ReduceOp {
    /// Defines a reduction of elements of type `T` by a function that reduces `right` into `left`, element by element: `left[i] =
    /// left[i] ∘ right[i]`. Both slices have the same length, which is part of an array, and differs between ranks and calls.
    ///
    /// The function must be associative. If it is not commutative, results are x0 ∘ x1 ∘ … in the order of ranks. `auto` then considers
    /// only algorithms that keep this order, and a call that names another one is refused. Every operation has such an algorithm
    /// (`recursive-doubling` for all-reduces and scans, `all-to-all` for reduces and reduce-scatters).
    ///
    /// All ranks define the function by the same name, which errors contain. Ranks that call reductions of different names, element types or
    /// commutativity get an [`Error::Mismatch`](crate::Error::Mismatch), except with probability 2^-48. The definition is kept until the process
    /// ends: define a reduction once, not for every call. A panic in the function ends the call like any other panic of the rank.
    ///
    /// Calls on arrays in GPU memory, and calls by MPI's own collectives, refuse custom reductions.
    ///
    /// ```
    /// use unisono::ReduceOp;
    ///
    /// // The composition of functions x ↦ a·x + b modulo 256, each in one integer: not commutative.
    /// let composed = ReduceOp::custom("compose", false, |left: &mut [u32], right: &[u32]| {
    ///     for (left, right) in left.iter_mut().zip(right) {
    ///         let ([a, b, ..], [c, d, ..]) = (left.to_le_bytes(), right.to_le_bytes());
    ///         let inner = a.wrapping_mul(d).wrapping_add(b);
    ///         *left = u32::from_le_bytes([a.wrapping_mul(c), inner, 0, 0]);
    ///     }
    /// });
    /// let ended = unisono::threads(3, |mut comm| -> unisono::Result<u32> {
    ///     let mut function = [u32::from_le_bytes([2, 1 + comm.rank() as u8, 0, 0])];
    ///     comm.all_reduce(&mut function, composed)?;
    ///     Ok(function[0])
    /// });
    /// // 2 · (2 · (2 · x + 3) + 2) + 1
    /// assert!(ended.into_iter().all(|function| function.unwrap() == u32::from_le_bytes([8, 17, 0, 0])));
    /// ```
    ///
    /// # Panics
    /// If the process has defined 65 536 reductions.
    pub fn custom<T: Element>(
        name: &str,
        is_commutative: bool,
        reduce: impl Fn(&mut [T], &[T]) + Send + Sync + 'static,
    ) -> Self {
        let reduce = move |left: &mut [u8], right: &[u8]| {
            reduce(bytemuck::cast_slice_mut(left), bytemuck::cast_slice(right));
        };
        Custom::define(name, T::DTYPE, 1, is_commutative, Box::new(reduce))
    }

    /// Defines a reduction of elements of `size` bytes, such as structures, by a function as in [`ReduceOp::custom`]. Its calls need
    /// [`CallBuilder::element_bytes`](crate::CallBuilder::element_bytes). The function gets whole elements, of any alignment.
    ///
    /// ```
    /// use std::num::NonZero;
    /// use unisono::ReduceOp;
    ///
    /// // The larger value, and the rank that has it.
    /// let largest = ReduceOp::custom_bytes("max-loc", 16, true, |left, right| {
    ///     let pair = |bytes: &[u8]| bytemuck::pod_read_unaligned::<[f64; 2]>(bytes);
    ///     for (left, right) in left.chunks_exact_mut(16).zip(right.chunks_exact(16)) {
    ///         if pair(right)[0] > pair(left)[0] {
    ///             left.copy_from_slice(right);
    ///         }
    ///     }
    /// });
    /// let ended = unisono::threads(3, |mut comm| -> unisono::Result<[f64; 2]> {
    ///     let mut pair = [[5.0, 9.0, 7.0][comm.rank()], comm.rank() as f64];
    ///     let bytes = bytemuck::cast_slice_mut::<f64, u8>(&mut pair);
    ///     comm.call().element_bytes(NonZero::new(16).unwrap()).all_reduce(bytes, largest)?;
    ///     Ok(pair)
    /// });
    /// assert!(ended.into_iter().all(|pair| pair.unwrap() == [9.0, 1.0]));
    /// ```
    ///
    /// # Panics
    /// If the size is not a power of two of at most 64, or as [`ReduceOp::custom`].
    pub fn custom_bytes(
        name: &str,
        size: u16,
        is_commutative: bool,
        reduce: impl Fn(&mut [u8], &[u8]) + Send + Sync + 'static,
    ) -> Self {
        assert!(
            size.is_power_of_two() && size <= MAX_BYTES,
            "elements of a custom reduction have 1, 2, 4, … or {MAX_BYTES} bytes, and not {size}"
        );
        Custom::define(name, DType::U8, size, is_commutative, Box::new(reduce))
    }
}

impl Custom {
    fn define(name: &str, dtype: DType, width: u16, is_commutative: bool, reduce: Box<Function>) -> ReduceOp {
        let fingerprint = xxh3_64(format!("{name} {dtype} {width} {is_commutative}").as_bytes());
        let name = Box::leak(name.to_owned().into_boxed_str());
        let definition = Definition { name, dtype, width, is_commutative, fingerprint, reduce };
        let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
        let number =
            u16::try_from(all.len()).expect("a program defines a reduction once, not for every call");
        all.push(Box::leak(Box::new(definition)));
        ReduceOp::Custom(Self(number))
    }

    /// Returns the reduction of this process whose fingerprint has these lowest 16 bits.
    pub(crate) fn by_code(code: u16) -> Option<Self> {
        let all = ALL.read().unwrap_or_else(PoisonError::into_inner);
        let place = all.iter().position(|definition| definition.fingerprint as u16 == code)?;
        Some(Self(place as u16))
    }

    /// Returns the number of this reduction in the order of definition, from 0. Bindings for other languages identify the reduction by it.
    pub fn number(self) -> u16 {
        self.0
    }

    /// Returns the reduction with this [number](Self::number), if the process has defined it.
    ///
    /// ```
    /// use unisono::{Custom, ReduceOp};
    ///
    /// let ReduceOp::Custom(first) = ReduceOp::custom("first", false, |_: &mut [u8], _: &[u8]| {}) else { unreachable!() };
    /// assert_eq!(Custom::numbered(first.number()), Some(first));
    /// assert_eq!(Custom::numbered(u16::MAX), None);
    /// ```
    pub fn numbered(number: u16) -> Option<Self> {
        let all = ALL.read().unwrap_or_else(PoisonError::into_inner);
        (usize::from(number) < all.len()).then_some(Self(number))
    }

    pub(crate) fn definition(self) -> &'static Definition {
        ALL.read().unwrap_or_else(PoisonError::into_inner)[usize::from(self.0)]
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        self.definition().name
    }

    /// Returns whether the order of operands does not matter.
    pub fn is_commutative(self) -> bool {
        self.definition().is_commutative
    }

    /// Returns the size of untyped elements, which calls set by [`CallBuilder::element_bytes`](crate::CallBuilder::element_bytes); `None`
    /// for elements with a type.
    pub fn element_bytes(self) -> Option<NonZero<u16>> {
        NonZero::new(self.definition().width).filter(|width| width.get() > 1)
    }

    /// Returns the type of values, and their number in an element.
    pub(crate) fn element(self) -> (DType, u16) {
        let Definition { dtype, width, .. } = *self.definition();
        (dtype, width)
    }

    /// Returns a hash of the definition without the function. Ranks compare it.
    pub(crate) fn fingerprint(self) -> u64 {
        self.definition().fingerprint
    }
}

impl Definition {
    /// Reduces `arrived` into `held`. Both consist of whole elements, aligned if they have a type.
    pub(crate) fn reduce(&self, combine: Combine, held: &mut [u8], arrived: &[u8]) {
        assert_eq!(held.len(), arrived.len(), "both arrays must have the same size");
        // Functions of programs may expect an element.
        if held.is_empty() {
            return;
        }
        if combine != Combine::ReduceBefore {
            return (self.reduce)(held, arrived);
        }
        // The function reduces into its left operand.
        let mut left = [0_u64; LEFT_BYTES / size_of::<u64>()];
        for (held, arrived) in held.chunks_mut(LEFT_BYTES).zip(arrived.chunks(LEFT_BYTES)) {
            let left = &mut bytemuck::cast_slice_mut(&mut left)[..arrived.len()];
            left.copy_from_slice(arrived);
            (self.reduce)(left, held);
            held.copy_from_slice(left);
        }
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.definition().fmt(f)
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, dtype, width, is_commutative, .. } = self;
        let values = format_args!("{width} {dtype}");
        f.debug_struct("Custom")
            .field("name", name)
            .field("element", &values)
            .field("is_commutative", is_commutative)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Concatenates strings of hexadecimal digits.
    fn concatenate(left: &mut [u64], right: &[u64]) {
        assert!(!left.is_empty());
        for (left, &right) in left.iter_mut().zip(right) {
            let digits = right.checked_ilog2().map_or(0, |bit| bit / 4 + 1);
            *left = *left << (4 * digits) | right;
        }
    }

    #[test]
    fn operands_are_on_the_requested_side() {
        let ReduceOp::Custom(custom) = ReduceOp::custom("concatenate", false, concatenate) else {
            unreachable!()
        };
        for count in [0, 1, 511, 512, 513, 2000] {
            let (one, other): (Vec<_>, Vec<_>) = (0..count).map(|index| (index % 255 + 1, 0xabc)).unzip();
            let mut held = one.clone();
            custom.definition().reduce(
                Combine::Reduce,
                bytemuck::cast_slice_mut::<u64, u8>(&mut held),
                bytemuck::cast_slice(&other),
            );
            assert!(held.iter().zip(&one).all(|(held, one)| *held == one << 12 | 0xabc));
            let mut held = other.clone();
            custom.definition().reduce(
                Combine::ReduceBefore,
                bytemuck::cast_slice_mut::<u64, u8>(&mut held),
                bytemuck::cast_slice(&one),
            );
            assert!(held.iter().zip(&one).all(|(held, one)| *held == one << 12 | 0xabc));
        }
    }

    #[test]
    fn definitions_of_the_same_name_differ() {
        let define = |name| ReduceOp::custom(name, true, |_: &mut [u8], _: &[u8]| {});
        let (one, other) = (define("one"), define("one"));
        assert!(one == one && one != other && one.name() == other.name());
    }

    #[test]
    #[should_panic(expected = "1, 2, 4, … or 64 bytes, and not 12")]
    fn element_sizes_other_than_powers_of_two_are_refused() {
        ReduceOp::custom_bytes("pair", 12, true, |_, _| {});
    }
}
