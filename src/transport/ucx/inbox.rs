//! Arriving messages: UCX calls these functions while a worker makes progress.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;

use bytemuck::{Pod, Zeroable};
use unisono_collectives::Rank;

use super::library::Status;
use super::sys::{self, UCS_INPROGRESS, UCS_OK, ucp_am_recv_param_t, ucp_ep_h, ucs_status_t};
use crate::transport::Header;

/// The header of a piece of a payload.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Envelope {
    pub(super) header: Header,
    pub(super) from: u32,
    /// Pieces from a rank are numbered, since UCX does not keep the order of active messages: a network may have several paths.
    pub(super) number: u32,
}

impl Default for Envelope {
    fn default() -> Self {
        Self::zeroed()
    }
}

/// A piece of a payload that has arrived, or that waits at its sender.
#[derive(Debug)]
pub(super) enum Payload {
    /// A copy of bytes that UCX does not keep.
    Copied(Box<[u8]>),
    /// This many bytes in memory of UCX, until they are released.
    Held(Descriptor, usize),
    /// This many bytes in memory of the sender, which are received or released.
    Offered(Descriptor, usize),
}

#[derive(Debug)]
pub(super) struct Descriptor(pub(super) NonNull<c_void>);

// SAFETY: only the worker at which it arrived uses it, on the worker's thread.
unsafe impl Send for Descriptor {}

/// The reason why a rank can no longer be reached.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(super) enum Lost {
    #[error("UCX reports: {0}")]
    Failed(Status),
    #[error("a part of a message has another size than its header announces")]
    Malformed,
    /// After everything that the other rank has sent.
    #[error("the rank has closed it")]
    Left,
    #[error("this rank has closed it")]
    Closed,
}

/// The pieces that have arrived from each rank, and the reasons why connections are lost.
#[derive(Debug)]
pub(super) struct Inbox {
    /// This rank, which is the header of its greetings and farewells.
    pub(super) own: u64,
    peers: Box<[Peer]>,
}

#[derive(Debug, Default)]
struct Peer {
    /// Ordered by number.
    pieces: RefCell<VecDeque<(Envelope, Payload)>>,
    next: Cell<u32>,
    has_greeted: Cell<bool>,
    lost: Cell<Option<Lost>>,
}

impl Payload {
    pub(super) fn size_bytes(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Held(_, size_bytes) | Self::Offered(_, size_bytes) => *size_bytes,
        }
    }
}

impl Inbox {
    pub(super) fn new(own: Rank, ranks: usize) -> Self {
        Self { own: own as u64, peers: (0..ranks).map(|_| Peer::default()).collect() }
    }

    /// Returns the next piece from a rank, if it has arrived.
    pub(super) fn take(&self, from: Rank) -> Option<(Envelope, Payload)> {
        let peer = &self.peers[from];
        let mut pieces = peer.pieces.borrow_mut();
        let is_next = pieces.front().is_some_and(|(envelope, _)| envelope.number == peer.next.get());
        let piece = if is_next { pieces.pop_front() } else { None };
        peer.next.set(peer.next.get().wrapping_add(u32::from(is_next)));
        piece
    }

    /// Removes and returns all pieces that have arrived from a rank.
    pub(super) fn clear(&self, from: Rank) -> VecDeque<(Envelope, Payload)> {
        self.peers[from].pieces.take()
    }

    pub(super) fn has_greeted(&self, from: Rank) -> bool {
        self.peers[from].has_greeted.get()
    }

    pub(super) fn lost(&self, other: Rank) -> Option<Lost> {
        self.peers[other].lost.get()
    }

    /// Records that the connection with a rank is lost. The first reason is kept.
    pub(super) fn lose(&self, other: Rank, lost: Lost) {
        self.peers[other].lose(lost);
    }

    /// Returns the argument of [`on_piece`] and [`on_signal`]. It is valid while this value exists and is not moved.
    pub(super) fn as_argument(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns the argument of [`on_error`] for a rank. It is valid while this value exists.
    pub(super) fn argument_for(&self, other: Rank) -> *mut c_void {
        std::ptr::from_ref(&self.peers[other]).cast_mut().cast()
    }
}

impl Peer {
    fn lose(&self, lost: Lost) {
        self.lost.set(Some(self.lost.get().unwrap_or(lost)));
    }

    fn add(&self, envelope: Envelope, payload: Payload) {
        let mut pieces = self.pieces.borrow_mut();
        // The distance from the next one, since numbers wrap around.
        let place = |envelope: &Envelope| envelope.number.wrapping_sub(self.next.get());
        let before = pieces.iter().rev().take_while(|(later, _)| place(later) > place(&envelope)).count();
        let end = pieces.len();
        pieces.insert(end - before, (envelope, payload));
    }
}

/// Returns the first bytes of a message, as a value.
///
/// # Safety
/// `header` must point to `size_bytes` bytes, unless that is 0.
unsafe fn read<T: Pod>(header: *const c_void, size_bytes: usize) -> Option<T> {
    // SAFETY: there are as many bytes as the type has, as the caller promises. Any bytes are a value of it.
    (size_bytes == size_of::<T>()).then(|| unsafe { header.cast::<T>().read_unaligned() })
}

/// Receives a piece of a payload. (UCX calls it. It does not unwind, which would end the process.)
///
/// # Safety
/// `argument` must be the [argument](Inbox::as_argument) of an inbox that exists, on the thread that uses it; the rest as UCX promises.
pub(super) unsafe extern "C" fn on_piece(
    argument: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: as the caller promises.
    let (inbox, attributes) = unsafe { (&*argument.cast::<Inbox>(), (*param).recv_attr) };
    // SAFETY: UCX passes the address of the header, and its size.
    let envelope = unsafe { read::<Envelope>(header, header_length) };
    // Messages from outside of this world are dropped, since any program may connect to a port of UCX.
    let Some((envelope, peer)) =
        envelope.and_then(|envelope| Some((envelope, inbox.peers.get(envelope.from as usize)?)))
    else {
        return UCS_OK;
    };
    let has = |flag| attributes & flag != 0;
    let described = match NonNull::new(data).map(Descriptor) {
        Some(offer) if has(sys::UCP_AM_RECV_ATTR_FLAG_RNDV) => Some(Payload::Offered(offer, length)),
        Some(bytes) if has(sys::UCP_AM_RECV_ATTR_FLAG_DATA) && length > 0 => {
            Some(Payload::Held(bytes, length))
        }
        _ => None,
    };
    if let Some(payload) = described {
        peer.add(envelope, payload);
        return UCS_INPROGRESS;
    }
    let bytes: Box<[u8]> = match length {
        0 => Box::default(),
        // SAFETY: without a descriptor, UCX passes the bytes themselves, which are valid during this call.
        _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) }.into(),
    };
    peer.add(envelope, Payload::Copied(bytes));
    UCS_OK
}

/// Receives the greeting of a rank, which shows that the rank reaches this one, or its farewell, since not every transport of UCX reports that
/// a rank leaves. The header of both is only the rank.
///
/// # Safety
/// As [`on_piece`].
pub(super) unsafe extern "C" fn on_signal<const IS_FAREWELL: bool>(
    argument: *mut c_void,
    header: *const c_void,
    header_length: usize,
    _: *mut c_void,
    _: usize,
    _: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: as the caller promises.
    let inbox = unsafe { &*argument.cast::<Inbox>() };
    // SAFETY: UCX passes the address of the header, and its size.
    let from = unsafe { read::<u64>(header, header_length) };
    match from.and_then(|from| inbox.peers.get(usize::try_from(from).ok()?)) {
        Some(peer) if IS_FAREWELL => peer.lose(Lost::Left),
        Some(peer) => peer.has_greeted.set(true),
        None => {}
    }
    UCS_OK
}

/// Records that a connection has failed.
///
/// # Safety
/// `argument` must be the [argument for a rank](Inbox::argument_for) of an inbox that exists, on the thread that uses it.
pub(super) unsafe extern "C" fn on_error(argument: *mut c_void, _: ucp_ep_h, status: ucs_status_t) {
    // SAFETY: as the caller promises.
    unsafe { &*argument.cast::<Peer>() }.lose(Lost::Failed(Status(status)));
}
