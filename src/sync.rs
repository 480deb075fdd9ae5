//! What ranks of a node share: the atomics and cells of the standard library or, under `--cfg loom`, loom's, which tries every order in
//! which threads may see each other's writes.

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

/// Memory that one rank writes and others read, by turns that atomics give them.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct SharedCell<T: ?Sized>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> SharedCell<T> {
    /// Looks at what is there, while nobody writes.
    #[inline(always)]
    pub(crate) fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
        look(self.0.get())
    }

    /// Writes, while nobody else looks.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// For loom, a sequentially consistent access is no more than an acquire and a release, but a fence is what it is: this one stands by
/// accesses that need to be in the one order of all. Elsewhere they are in it by themselves.
#[inline(always)]
pub(crate) fn one_order() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
