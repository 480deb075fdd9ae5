//! Channels: messages from one rank to another, in a few slots in shared memory that are used in rotation.

use crossbeam_utils::CachePadded;
use unisono_collectives::{Rank, SENDS_AHEAD};

use crate::kernels;
use crate::memory::Location;
use crate::status::StatusBoard;
use crate::sync::{AtomicU64, Ordering, SharedCell};
use crate::transport::{Failure, Header};

/// The number of messages that a channel can hold.
pub(super) const SLOTS: u64 = SENDS_AHEAD as u64;
/// The longest payload in a slot.
pub(crate) const SHORT: usize = if cfg!(loom) { 128 } else { 4096 };
/// The longest payload next to the number: both fit a pair of cache lines.
const INLINE: usize = 2 * LINE - STAMP;
/// A number, a digest and an acknowledgement.
const STAMP: usize = 3 * size_of::<u64>();
const LINE: usize = 64;

/// A header and a location on one cache line, with a number that identifies the post.
///
/// The writer writes the number last, so a reader observes the whole content or none of it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Post {
    number: AtomicU64,
    content: SharedCell<Content>,
}

// A post moves from core to core as one cache line.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Post>() == LINE);

/// The content of a post.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Content {
    pub(super) header: Header,
    pub(super) location: Location,
}

// SAFETY: the content is written only by the rank that posts, and only after the other ranks have read the previous content
// (`Condition`). It is read only after its number was observed.
unsafe impl Sync for Post {}

impl Post {
    /// Returns a post that was never used. (A board consists of zeroed memory instead.)
    #[cfg(loom)]
    pub(super) fn new(content: Content) -> Self {
        Self { number: AtomicU64::new(0), content: SharedCell::new(content) }
    }

    /// Posts the content with this number, which must be larger than the previous one.
    ///
    /// # Safety
    /// Only one rank may post here, and no rank may still be reading the previous content.
    pub(super) unsafe fn post(&self, number: u64, content: Content) {
        // SAFETY: as the caller promises, no other code accesses the content now.
        self.content.with_mut(|own| unsafe { *own = content });
        self.number.store(number, Ordering::Release);
    }

    /// Returns the content, if it has this number.
    #[inline]
    pub(super) fn read(&self, number: u64) -> Option<&Content> {
        // SAFETY: the number was observed, so all of the content was written before. It stays until this rank has published that it has read
        // it.
        (self.number.load(Ordering::Acquire) == number)
            .then(|| self.content.with(|content| unsafe { &*content }))
    }
}

/// Copies bytes that are too few for a function call to pay off.
#[inline]
fn copy_inline(to: &mut [u8], from: &[u8]) {
    let (mut to, mut from) = (to.chunks_exact_mut(4), from.chunks_exact(4));
    for (to, from) in to.by_ref().zip(from.by_ref()) {
        to.copy_from_slice(from);
    }
    to.into_remainder().copy_from_slice(from.remainder());
}

/// The part of a message that the receiver reads at once: for a short message, everything is on the cache line of its number.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Message {
    /// [`Header::digest`].
    digest: u64,
    /// The number of the receiver's messages that the sender had received. It saves the receiver a read of that counter's cache line.
    pub(super) acknowledged: u64,
    /// The payload, or its location.
    inline: [u8; INLINE],
}

impl Message {
    /// Returns the location of a payload outside the slot.
    pub(super) fn location(&self) -> Location {
        bytemuck::pod_read_unaligned(&self.inline[..size_of::<Location>()])
    }
}

/// The number of a message, and the acknowledgement for the other direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub(super) number: u64,
    /// [`Message::acknowledged`].
    pub(super) acknowledged: u64,
}

/// The slot of one message. Its number is written last: once it is visible, so is the rest.
#[derive(Debug)]
#[repr(C, align(128))]
struct Slot {
    number: AtomicU64,
    message: SharedCell<Message>,
    payload: SharedCell<[u8; SHORT]>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 2 * LINE + SHORT && STAMP + INLINE == 2 * LINE);

/// The messages from one rank to another, numbered from 1.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Channel {
    /// The number of messages that the receiver has released.
    released: CachePadded<AtomicU64>,
    /// The headers whose digests are in the messages. They are read only if a digest differs from the expected one, and otherwise stay in
    /// the sender's cache.
    headers: CachePadded<[SharedCell<Header>; SLOTS as usize]>,
    slots: [Slot; SLOTS as usize],
}

// SAFETY: a message, its header and its payload are written by the sender alone, before the number, and after the previous message in the
// slot was released. They are read after the number was observed, and before the message is released.
unsafe impl Sync for Channel {}

impl Channel {
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % SLOTS) as usize]
    }

    /// Returns the number of messages that the receiver has released.
    pub(super) fn released(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// Sends a message with its payload. Only the sender of this channel calls it, once for each number and in order, while
    /// fewer than [`SLOTS`] messages are unreleased.
    #[inline]
    pub(super) fn send_short(&self, stamp: Stamp, header: &Header, payload: &[u8]) {
        if payload.len() <= INLINE {
            self.post(stamp, header, payload);
            return;
        }
        let slot = self.slot(stamp.number);
        // SAFETY: the slot is free, so only the sender, this thread, accesses it. The source is not a slot.
        slot.payload.with_mut(|own| kernels::copy(unsafe { &mut (&mut *own)[..payload.len()] }, payload));
        self.post(stamp, header, &[]);
    }

    /// Sends a message whose payload is elsewhere, under the conditions of [`Channel::send_short`].
    pub(super) fn send_long(&self, stamp: Stamp, header: &Header, location: Location) {
        self.post(stamp, header, bytemuck::bytes_of(&location));
    }

    /// Sends a piece of a longer payload in the slot, under the conditions of [`Channel::send_short`].
    pub(super) fn send_piece(&self, stamp: Stamp, header: &Header, piece: &[u8]) {
        // SAFETY: as in `send_short`.
        self.slot(stamp.number)
            .payload
            .with_mut(|own| kernels::copy(unsafe { &mut (&mut *own)[..piece.len()] }, piece));
        self.send_long(stamp, header, Location { segment: Location::SLOT, offset: 0 });
    }

    /// Posts a message in place, since reading a copy in other word sizes than it was written in would stall the processor.
    #[inline]
    fn post(&self, Stamp { number, acknowledged }: Stamp, header: &Header, inline: &[u8]) {
        let slot = self.slot(number);
        slot.message.with_mut(|message| {
            // SAFETY: the slot is free, so only the sender, this thread, accesses it.
            let message = unsafe { &mut *message };
            message.digest = header.digest();
            message.acknowledged = acknowledged;
            copy_inline(&mut message.inline[..inline.len()], inline);
        });
        // SAFETY: the slot is free, and so is its header.
        self.headers[(number % SLOTS) as usize].with_mut(|kept| unsafe { *kept = *header });
        slot.number.store(number, Ordering::Release);
    }

    /// Returns message `number`, if it has arrived. Only the receiver calls it, before it releases the message.
    #[inline]
    pub(super) fn arrived(&self, number: u64) -> Option<&Message> {
        let slot = self.slot(number);
        // SAFETY: the number was observed, so all of the message was written before. It stays until it is released.
        (slot.number.load(Ordering::Acquire) == number)
            .then(|| slot.message.with(|message| unsafe { &*message }))
    }

    /// Returns the header of message `number`, which has arrived and is not released.
    pub(super) fn header(&self, number: u64) -> &Header {
        // SAFETY: the message has arrived and is not released, so no rank writes to its header.
        self.headers[(number % SLOTS) as usize].with(|header| unsafe { &*header })
    }

    /// Returns the header of the next message, if it has arrived. Only the receiver calls it.
    pub(super) fn ahead(&self) -> Option<&Header> {
        let next = self.released() + 1;
        self.arrived(next).map(|_| self.header(next))
    }

    /// Compares the header of message `number` of rank `other`, which has arrived and is not released, with the expected one.
    #[inline]
    pub(super) fn check(
        &self,
        number: u64,
        message: &Message,
        expected: &Header,
        other: Rank,
        status: &StatusBoard,
    ) -> Result<(), Failure> {
        if message.digest == expected.digest() {
            return Ok(());
        }
        expected.check(self.header(number), other, status)
    }

    /// Returns the short payload of message `number`, which has arrived and is not released.
    #[inline]
    pub(super) fn payload<'a>(&'a self, number: u64, message: &'a Message, size_bytes: usize) -> &'a [u8] {
        if size_bytes <= INLINE { &message.inline[..size_bytes] } else { self.piece(number, size_bytes) }
    }

    /// Returns the content of the slot of message `number`, which has arrived and is not released.
    #[inline]
    pub(super) fn piece(&self, number: u64, size_bytes: usize) -> &[u8] {
        // SAFETY: the message has arrived and is not released, so no rank writes to the slot.
        self.slot(number).payload.with(|payload| unsafe { &(&*payload)[..size_bytes] })
    }

    /// Releases message `number`. Its slot, and the memory that it points to, belong to the sender again.
    pub(super) fn release(&self, number: u64) {
        self.released.store(number, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod tests {
    mod orders;
}
