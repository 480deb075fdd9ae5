//! Links: messages between ranks that share no memory. [`Far`](super::far::Far) makes exchanges of them, and checks and waits, in the
//! same way for all links.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use unisono_collectives::Rank;

use super::half::Polled;
use super::{Failure, Header, Outgoing};
use crate::status::StatusBoard;
use crate::system::FAILED;

/// The pieces in which a long payload may be received; a multiple of all element sizes, and of the segments of MPI.
pub(super) const PIECE: usize = 8 * FAR_SEGMENT;

/// The largest segment between nodes: MPIs send messages of up to 64 KiB, including their own header, eagerly over TCP, and use
/// a rendezvous for longer ones. The rendezvous takes longer than the transfer: it leaves a 1 Gbit/s link idle for more than
/// half of the time (measured: 335 and 150 ms for 16 MiB over two ranks).
pub(crate) const FAR_SEGMENT: usize = (64 << 10) - 256;

/// Moves messages between ranks that share no memory. No call blocks, except [`Link::nap`].
///
/// Messages of a rank to another arrive in the order in which they are sent. One to each rank, and one from each, is under way at a
/// time.
pub(super) trait Link: fmt::Debug + Send {
    /// Returns the name in tables.
    fn name(&self) -> &'static str;

    /// Continues to send a message; `given` is 0 at first, and belongs to the link. The bytes stay valid and unchanged until it is done.
    ///
    /// # Errors
    /// If the link fails.
    fn send(&mut self, header: &Header, outgoing: Outgoing<'_>, given: &mut usize)
    -> Result<Polled, Failure>;

    /// Returns the header of the message from a rank whose payload is next, if it has arrived.
    ///
    /// # Errors
    /// If the link fails.
    fn ahead(&mut self, from: Rank) -> Result<Option<Header>, Failure>;

    /// Continues to receive the payload of the message from a rank whose header has [arrived](Link::ahead), into a place for what is left of
    /// it, or for its next [`PIECE`]; `taken` bytes of the place are filled, 0 at first. The place stays valid, and is not accessed
    /// otherwise, until it is done. An empty payload is received too.
    ///
    /// # Errors
    /// If the link fails.
    fn receive(&mut self, from: Rank, place: &mut [u8], taken: &mut usize) -> Result<Polled, Failure>;

    /// Returns whether a message ends a [nap](Link::nap). Otherwise a rank that waits polls.
    fn wakes_up(&self) -> bool;

    /// Sleeps until the link can go on, for this time at most.
    fn nap(&self, most: Duration);

    /// Returns the reason why nothing more can be sent to and received from a rank.
    fn lost(&self, other: Rank) -> Option<String>;

    /// Takes back the memory that messages to and from a rank use, if the link can. They cannot be completed afterwards.
    fn withdraw(&mut self, _: Rank) {}

    /// Returns whether the link may still access bytes that a message to a rank lent to it, or the place of one
    /// from there.
    fn holds_memory(&self, other: Rank) -> bool;

    /// Ends this process, and if possible the job, since the link may still access memory that would return to the program.
    fn end_job(&self, _: &StatusBoard) -> ! {
        signal_hook::low_level::exit(FAILED)
    }
}

/// The links of a rank: those for collectives and for point-to-point messages, neither of which waits for the other.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) collectives: Box<dyn Link>,
    pub(super) messages: Box<dyn Link>,
    /// Connections over which the guard of this rank exchanges states and failures with other nodes.
    pub(super) controls: Vec<(Rank, OwnedFd)>,
}
