//! Arrays that a program lends for the duration of a call.

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};

use unisono::Element;

/// An array that the program lends for the duration of a call. The program owns it, so dropping it frees nothing but an object that keeps
/// the memory alive.
#[derive(Debug)]
pub struct Lent<T, K = ()> {
    start: *mut T,
    count: usize,
    _keeper: K,
}

// SAFETY: elements are plain data, and while the array is lent, no thread of the program accesses it. The keeper can be sent.
unsafe impl<T: Element, K: Send> Send for Lent<T, K> {}

impl<T: Element> Lent<T> {
    /// Returns an array of `count` elements at `data`, which may be null if `count` is 0.
    ///
    /// # Errors
    /// If such an array cannot exist at this address, with the text of the error.
    ///
    /// # Safety
    /// If not null, the pointer must be to `count` elements that the program does not access until the call is done.
    pub unsafe fn new(data: *mut c_void, count: usize) -> Result<Self, String> {
        let start = data.cast::<T>();
        let size = count.checked_mul(size_of::<T>()).filter(|&size| size <= isize::MAX as usize);
        if size.is_none() {
            return Err(format!("{count} {} exceed the address space", T::DTYPE));
        }
        if count == 0 {
            return Ok(Self { start: std::ptr::dangling_mut(), count, _keeper: () });
        }
        if start.is_null() {
            return Err(format!("the array of {count} {} is NULL", T::DTYPE));
        }
        if !start.is_aligned() {
            let (address, needs) = (data.addr(), align_of::<T>());
            return Err(format!(
                "the array at {address:#x} is not aligned to {needs} bytes, as {} needs",
                T::DTYPE
            ));
        }
        Ok(Self { start, count, _keeper: () })
    }

    /// Returns the array with an object that keeps its memory alive.
    pub fn kept_by<K>(self, keeper: K) -> Lent<T, K> {
        Lent { start: self.start, count: self.count, _keeper: keeper }
    }
}

impl<T: Element, K> Deref for Lent<T, K> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` has checked the address and the size, and its caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }
}

impl<T: Element, K> DerefMut for Lent<T, K> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`. The array is lent to this call alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_addresses_are_refused() {
        let mut values = [0_u64; 2];
        let data = values.as_mut_ptr().cast::<c_void>();
        // SAFETY: the array has two elements. Refused arrays are not accessed.
        unsafe {
            assert_eq!(Lent::<u64>::new(data, 2).unwrap().len(), 2);
            assert!(Lent::<u64>::new(data.byte_add(1), 1).is_err());
            assert!(Lent::<u64>::new(data, usize::MAX).is_err());
            assert!(Lent::<u64>::new(std::ptr::null_mut(), 1).is_err());
            assert!(Lent::<u64>::new(std::ptr::null_mut(), 0).unwrap().is_empty());
        }
    }
}
