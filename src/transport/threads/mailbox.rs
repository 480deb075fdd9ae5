//! A place for one message from one thread to another.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, Ordering};

use bytemuck::Zeroable as _;

use crate::transport::Header;

/// Nothing is here; the message belongs to the sender.
const EMPTY: u8 = 0;
/// A message is here; whoever changes the state next has it.
const FULL: u8 = 1;
/// The receiver is reading; the message belongs to it.
const READING: u8 = 2;

/// A mailbox, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Mailbox {
    state: AtomicU8,
    message: UnsafeCell<Message>,
}

#[derive(Debug, Clone, Copy)]
struct Message {
    header: Header,
    bytes: *const u8,
    size_bytes: usize,
}

// SAFETY: `message` is touched only by the thread that the state gives it to (see the constants); the state
// changes hands with release and acquire. The bytes behind the pointer are a `&[u8]` of the sender's, which
// `Posted` keeps borrowed for as long as the state is not `EMPTY`.
unsafe impl Sync for Mailbox {}

// SAFETY: as for `Sync`; a mailbox has no tie to the thread that made it.
unsafe impl Send for Mailbox {}

impl Default for Mailbox {
    fn default() -> Self {
        let message = Message { header: Header::zeroed(), bytes: std::ptr::null(), size_bytes: 0 };
        Self { state: AtomicU8::new(EMPTY), message: UnsafeCell::new(message) }
    }
}

impl Mailbox {
    /// Puts a message here. Only one thread may send through a mailbox.
    ///
    /// # Panics
    /// If the message before is still here.
    pub(super) fn post<'a>(&'a self, header: Header, bytes: &'a [u8]) -> Posted<'a> {
        assert_eq!(self.state.load(Ordering::Acquire), EMPTY, "a rank sends one message at a time");
        // SAFETY: the state is `EMPTY` and only this thread, the sender, changes that.
        unsafe { *self.message.get() = Message { header, bytes: bytes.as_ptr(), size_bytes: bytes.len() } };
        self.state.store(FULL, Ordering::Release);
        Posted { mailbox: self, bytes: PhantomData }
    }

    /// Reads the message, if there is one, and empties the mailbox. Only one thread may receive through a
    /// mailbox.
    pub(super) fn take<R>(&self, read: impl FnOnce(&Header, &[u8]) -> R) -> Option<R> {
        let reading = self.begin_to_read(EMPTY)?;
        let Message { header, bytes, size_bytes } = reading.message();
        // SAFETY: the sender keeps these bytes borrowed until the state is `EMPTY` again, which `reading`
        // sees to at its end.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, size_bytes) };
        Some(read(&header, bytes))
    }

    /// The header of the message, if there is one; it stays.
    pub(super) fn peek(&self) -> Option<Header> {
        Some(self.begin_to_read(FULL)?.message().header)
    }

    fn begin_to_read(&self, state_after: u8) -> Option<Reading<'_>> {
        let change = self.state.compare_exchange(FULL, READING, Ordering::Acquire, Ordering::Relaxed);
        change.ok().map(|_| Reading { mailbox: self, state_after })
    }
}

/// Holds the message for the receiver, also if what reads it panics.
struct Reading<'a> {
    mailbox: &'a Mailbox,
    state_after: u8,
}

impl Reading<'_> {
    fn message(&self) -> Message {
        // SAFETY: the state is `READING`, and it was this thread that made it so.
        unsafe { *self.mailbox.message.get() }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.mailbox.state.store(self.state_after, Ordering::Release);
    }
}

/// A message that was posted. At its end, it is taken back if nobody has read it.
#[derive(Debug)]
pub(super) struct Posted<'a> {
    mailbox: &'a Mailbox,
    bytes: PhantomData<&'a [u8]>,
}

impl Posted<'_> {
    /// Whether the receiver has read the message to its end.
    pub(super) fn is_taken(&self) -> bool {
        self.mailbox.state.load(Ordering::Acquire) == EMPTY
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        let take_back =
            || self.mailbox.state.compare_exchange(FULL, EMPTY, Ordering::Acquire, Ordering::Acquire);
        while take_back() == Err(READING) {
            // The receiver is in the middle of a copy or a reduction; it will not be long.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_once() {
        let mailbox = Mailbox::default();
        let posted = mailbox.post(Header::zeroed(), b"gradient");
        assert!(!posted.is_taken());
        assert!(mailbox.peek().is_some());
        assert_eq!(mailbox.take(|_, bytes| bytes.to_vec()).as_deref(), Some(&b"gradient"[..]));
        assert!(posted.is_taken());
        assert!(mailbox.take(|_, _| ()).is_none());
    }

    #[test]
    fn a_message_that_is_dropped_is_taken_back() {
        let mailbox = Mailbox::default();
        drop(mailbox.post(Header::zeroed(), b"gradient"));
        assert!(mailbox.take(|_, _| ()).is_none());
    }

    #[test]
    fn a_reader_that_panics_lets_go() {
        let mailbox = Mailbox::default();
        let posted = mailbox.post(Header::zeroed(), b"gradient");
        let panic = std::panic::AssertUnwindSafe(|| mailbox.take(|_, _| panic!("on purpose")));
        assert!(std::panic::catch_unwind(panic).is_err());
        assert!(posted.is_taken());
    }

    #[test]
    fn bytes_cross_threads() {
        let mailbox = Mailbox::default();
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let mut sum = 0_u64;
                for _ in 0..1000 {
                    sum += loop {
                        match mailbox.take(|_, bytes| u64::from(bytes[0])) {
                            Some(byte) => break byte,
                            None => std::thread::yield_now(),
                        }
                    };
                }
                sum
            });
            for i in 0..1000_u32 {
                let bytes = [(i % 251) as u8; 64];
                let posted = mailbox.post(Header::zeroed(), &bytes);
                while !posted.is_taken() {
                    std::thread::yield_now();
                }
            }
            receiver.join().unwrap()
        });
        assert_eq!(received, (0..1000_u64).map(|i| i % 251).sum::<u64>());
    }
}
