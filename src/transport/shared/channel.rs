//! What one rank sends to another: a few slots in memory that both have, used in turn.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::registered::Location;
use crate::transport::Header;

/// How many messages may lie in a channel.
pub(super) const SLOTS: u64 = 4;
/// The longest payload that travels in a slot.
pub(crate) const SHORT: usize = 4096;
/// The longest payload that travels on the cache line of its stamp and header.
const TINY: usize = size_of::<Location>();

/// Something on a cache line of its own (two, since they are fetched in pairs).
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct OwnLine<T>(T);

impl<T> std::ops::Deref for OwnLine<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A header with 16 bytes more, on one cache line, and a number that says which message it is.
///
/// Whoever posts writes everything else first and the number last; who reads it sees all or nothing.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Post {
    number: AtomicU64,
    content: UnsafeCell<Content>,
}

// One cache line goes from core to core for a message.
const _: () = assert!(size_of::<Post>() == 64);

/// What a post says.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Content {
    pub(super) header: Header,
    /// Where the payload is, or the payload itself if it is tiny.
    place: [u8; TINY],
}

impl Content {
    pub(super) fn new(header: Header, location: Location) -> Self {
        Self { header, place: bytemuck::cast(location) }
    }

    pub(super) fn location(&self) -> Location {
        bytemuck::cast(self.place)
    }
}

// SAFETY: the content is written only by the rank that posts, and only when the other ranks have read the
// content before (`Channel`, `Condition`); it is read only after its number has been seen.
unsafe impl Sync for Post {}

impl Post {
    /// Posts the content with this number, which must be larger than the one before.
    ///
    /// # Safety
    /// Only one rank may post here, and nobody may still be reading the content before.
    pub(super) unsafe fn post(&self, number: u64, content: Content) {
        // SAFETY: as the caller promises, nobody else touches the content now.
        unsafe { *self.content.get() = content };
        self.number.store(number, Ordering::Release);
    }

    /// The same with a tiny payload in the place of a location. It is written where it stays: copied once more, it would be read in
    /// other words than it was written in, for which a processor stalls.
    ///
    /// # Safety
    /// As for [`Post::post`].
    unsafe fn post_tiny(&self, number: u64, header: Header, payload: &[u8]) {
        // SAFETY: as the caller promises, nobody else touches the content now.
        let content = unsafe { &mut *self.content.get() };
        content.header = header;
        copy_tiny(&mut content.place[..payload.len()], payload);
        self.number.store(number, Ordering::Release);
    }

    /// The number of the content that is here.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// The content, if it is the one with this number.
    #[inline]
    pub(super) fn read(&self, number: u64) -> Option<&Content> {
        // SAFETY: the number is there, so all of the content was written before, and it stays until this rank
        // has said that it has read it.
        (self.number() == number).then(|| unsafe { &*self.content.get() })
    }
}

/// Copies so few bytes that a call of `memcpy` would take longer.
#[inline]
fn copy_tiny(to: &mut [u8], from: &[u8]) {
    let (mut to, mut from) = (to.chunks_exact_mut(4), from.chunks_exact(4));
    for (to, from) in to.by_ref().zip(from.by_ref()) {
        to.copy_from_slice(from);
    }
    to.into_remainder().copy_from_slice(from.remainder());
}

/// A place for one message.
#[derive(Debug)]
#[repr(C)]
struct Slot {
    post: OwnLine<Post>,
    payload: UnsafeCell<[u8; SHORT]>,
}

/// The messages from one rank to another, numbered from 1.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Channel {
    /// How many messages the receiver is done with.
    taken: OwnLine<AtomicU64>,
    slots: [Slot; SLOTS as usize],
}

// SAFETY: as for `Post`: a payload is written before its number and read after it, and a slot is used again only
// when its message is taken.
unsafe impl Sync for Channel {}

impl Channel {
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % SLOTS) as usize]
    }

    /// How many messages the receiver is done with.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Sends message `number` with its payload. Only the sender of this channel calls it, for each number once
    /// and in order, when fewer than [`SLOTS`] messages are not taken.
    #[inline]
    pub(super) fn send_short(&self, number: u64, header: Header, payload: &[u8]) {
        let slot = self.slot(number);
        if payload.len() <= TINY {
            // SAFETY: the slot is free.
            unsafe { slot.post.post_tiny(number, header, payload) };
            return;
        }
        // SAFETY: the slot is free, so only the sender, this thread, touches it; the source is no slot.
        unsafe { (&mut *slot.payload.get())[..payload.len()].copy_from_slice(payload) };
        // SAFETY: the slot is free.
        unsafe { slot.post.post_tiny(number, header, &[]) };
    }

    /// Sends message `number`, whose payload is elsewhere. Called as [`Channel::send_short`].
    pub(super) fn send_long(&self, number: u64, header: Header, location: Location) {
        // SAFETY: the slot is free.
        unsafe { self.slot(number).post.post(number, Content::new(header, location)) };
    }

    /// What message `number` says, if it has arrived. Only the receiver calls it, before it takes the message.
    #[inline]
    pub(super) fn arrived(&self, number: u64) -> Option<&Content> {
        self.slot(number).post.read(number)
    }

    /// Reads the short payload of a message that has arrived.
    #[inline]
    pub(super) fn payload<'a>(&'a self, number: u64, content: &'a Content, size_bytes: usize) -> &'a [u8] {
        if size_bytes <= TINY {
            return &content.place[..size_bytes];
        }
        // SAFETY: the message has arrived and is not taken, so nobody writes to the slot.
        unsafe { &(&*self.slot(number).payload.get())[..size_bytes] }
    }

    /// Takes message `number`: its slot, and what it pointed to, are the sender's again.
    pub(super) fn take(&self, number: u64) {
        self.taken.store(number, Ordering::Release);
    }
}
