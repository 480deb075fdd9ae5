//! The element types of collectives.

use std::fmt;
use std::ops::DerefMut;

use bytemuck::Pod;
use half::{bf16, f16};
use unisono_collectives::named;

named! {
    /// An element type.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum DType: "element type" {
        /// 32-bit float.
        F32 = "f32",
        /// 64-bit float.
        F64 = "f64",
        /// IEEE 754 half precision: 5 bits of exponent, 11 of precision.
        F16 = "f16",
        /// bfloat16, the upper half of a 32-bit float: 8 bits of exponent, 8 of precision.
        BF16 = "bf16",
        /// Signed 32-bit integer.
        I32 = "i32",
        /// Signed 64-bit integer.
        I64 = "i64",
        /// Unsigned 8-bit integer.
        U8 = "u8",
        /// Unsigned 32-bit integer.
        U32 = "u32",
        /// Unsigned 64-bit integer.
        U64 = "u64",
    }
}

impl DType {
    /// Returns the size of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Returns whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64) || self.is_half()
    }

    /// Returns whether this is a half-precision type.
    pub fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type whose slices collectives accept: one for each [`DType`].
pub trait Element: Pod + PartialEq + fmt::Debug + sealed::Sealed + Send + Sync {
    /// The type, as a value.
    const DTYPE: DType;
}

/// A buffer of a non-blocking collective: a vector, [registered memory](crate::Communicator::alloc), or any other owner of a slice of
/// [elements](Element).
pub trait Buffer: DerefMut<Target = [<Self as Buffer>::Element]> + Send + 'static {
    /// The type of the elements.
    type Element: Element;
}

impl<T: Element, B: DerefMut<Target = [T]> + Send + 'static> Buffer for B {
    type Element = T;
}

macro_rules! elements {
    ($($element:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $element {}
        impl Element for $element {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    f32 => F32, f64 => F64, f16 => F16, bf16 => BF16,
    i32 => I32, i64 => I64, u8 => U8, u32 => U32, u64 => U64,
}

/// Evaluates an expression with a type alias for the Rust type of a [`DType`](crate::DType) that is known only at run time.
///
/// ```
/// use unisono::{DType, Element, with_type};
///
/// let size_of = |dtype: DType| with_type!(dtype, T => size_of::<T>());
/// assert_eq!(size_of(DType::BF16), 2);
/// ```
#[macro_export(local_inner_macros)]
macro_rules! with_type {
    (@arms $dtype:expr, $type:ident, $body:expr, $($variant:ident: $element:ty),*) => {
        match $dtype {$(
            $crate::DType::$variant => {
                type $type = $element;
                $body
            }
        )*}
    };
    ($dtype:expr, $type:ident => $body:expr) => {
        with_type!(
            @arms $dtype, $type, $body, F32: f32, F64: f64, F16: $crate::half::f16, BF16: $crate::half::bf16, I32: i32, I64: i64,
            U8: u8, U32: u32, U64: u64
        )
    };
}

pub(crate) use with_type;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_match_the_rust_types() {
        fn check<T: Element>() {
            assert_eq!(T::DTYPE.size_bytes(), size_of::<T>());
            assert_eq!(T::DTYPE.name(), std::any::type_name::<T>().rsplit("::").next().unwrap());
            assert_eq!(T::DTYPE.name().parse(), Ok(T::DTYPE));
        }
        check::<f32>();
        check::<f64>();
        check::<f16>();
        check::<bf16>();
        check::<i32>();
        check::<i64>();
        check::<u8>();
        check::<u32>();
        check::<u64>();
        assert!("float".parse::<DType>().is_err());
    }

    #[test]
    fn with_type_selects_the_matching_rust_type() {
        for expected in DType::ALL {
            with_type!(expected, T => assert_eq!(T::DTYPE, expected));
        }
    }
}
