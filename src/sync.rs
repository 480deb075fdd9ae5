//! Atomics and cells shared by the ranks of a node: those of the standard library or, under `--cfg loom`, those of loom, which
//! explores all interleavings.

pub(crate) use std::sync::atomic::Ordering;

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell as SharedCell,
    sync::atomic::{AtomicBool, AtomicU64, fence},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64, fence},
    thread::yield_now,
};

/// Memory that one rank writes and others read, synchronised by atomics.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct SharedCell<T: ?Sized>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> SharedCell<T> {
    /// Reads the value, while no thread writes.
    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Writes the value, while no other thread accesses it.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Issues a fence under loom, which treats sequentially consistent accesses as acquire and release only. Elsewhere it does nothing.
#[inline(always)]
pub(crate) fn one_order() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
