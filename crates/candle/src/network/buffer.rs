//! Buffers that operations reuse: fresh memory costs as much as a pass over it.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// The maximum number of buffers that a thread keeps.
const KEPT: usize = 64;

thread_local! {
    /// Unused memory. The most recently freed buffer is last.
    static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Values that must be written before they are read. The thread that drops a buffer keeps its memory for the next one.
#[derive(Debug)]
pub(super) struct Buffer(Vec<f32>);

impl Buffer {
    pub(super) fn of(count: usize) -> Self {
        let free = FREE.with_borrow_mut(|free| {
            let place = free.iter().rposition(|free| free.len() == count)?;
            Some(free.remove(place))
        });
        let mut values = free.unwrap_or_else(|| vec![0.0; count]);
        if cfg!(debug_assertions) {
            // NaN reveals a read before the first write.
            values.fill(f32::NAN);
        }
        Self(values)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let values = std::mem::take(&mut self.0);
        if values.capacity() == 0 {
            return;
        }
        // A terminating thread has already freed its buffers.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() == KEPT {
                free.remove(0);
            }
            free.push(values);
        });
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}
