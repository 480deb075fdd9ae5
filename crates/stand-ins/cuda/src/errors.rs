//! The driver's errors: numbers, names and descriptions.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// An error of the driver, by its number in `cuda.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) u32);

pub(crate) type Status = u32;

macro_rules! failures {
    ($($name:ident = $number:literal, $full:literal, $sentence:literal;)*) => {
        impl Failure {
            $(pub(crate) const $name: Self = Self($number);)*

            /// The name in `cuda.h`, and a description.
            fn text(self) -> Option<(&'static CStr, &'static CStr)> {
                match self.0 {
                    0 => Some((c"CUDA_SUCCESS", c"no error")),
                    $($number => Some(($full, $sentence)),)*
                    _ => None,
                }
            }
        }
    };
}

failures! {
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    ILLEGAL_ADDRESS = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered";
    CONTEXT_IS_DESTROYED = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported (by the stand-in)";
}

pub(crate) fn status(result: Result<(), Failure>) -> Status {
    result.map_or_else(|failure| failure.0, |()| 0)
}

/// The address for a result, in C a pointer that may be null.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes a result to the caller's address.
pub(crate) fn give<T>(to: Out<'_, T>, value: T) -> Result<(), Failure> {
    to.ok_or(Failure::INVALID_VALUE)?.write(value);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: Status, name: Out<'_, *const c_char>) -> Status {
    let text = Failure(error).text().ok_or(Failure::INVALID_VALUE);
    status(text.and_then(|(text, _)| give(name, text.as_ptr())))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: Status, sentence: Out<'_, *const c_char>) -> Status {
    let text = Failure(error).text().ok_or(Failure::INVALID_VALUE);
    status(text.and_then(|(_, text)| give(sentence, text.as_ptr())))
}
