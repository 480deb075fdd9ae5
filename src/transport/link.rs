//! Links: messages between ranks that share no memory. [`Far`](super::far::Far) implements exchanges, checks and waits in the same way for
//! all links.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use unisono_collectives::Rank;

use super::half::Polled;
use super::{Failure, Header, Outgoing};
use crate::status::StatusBoard;
use crate::system::FAILED;

/// The size of the pieces in which a long payload may be received. It is a multiple of all element sizes, and of the segments of MPI.
pub(super) const PIECE: usize = 8 * FAR_SEGMENT;

/// The largest segment between nodes. MPI libraries send messages of up to 64 KiB, including their own header, eagerly over TCP, and use
/// a rendezvous for longer ones. The rendezvous takes longer than the transfer: it leaves a 1 Gbit/s link idle for more than
/// half of the time (measured: 335 and 150 ms for 16 MiB over two ranks).
pub(crate) const FAR_SEGMENT: usize = (64 << 10) - 256;

/// Moves messages between ranks that share no memory. No call blocks, except [`Link::nap`].
///
/// Messages from a rank to another arrive in the order in which they are sent. At any time, at most one message to each rank and one from
/// each rank is in transit.
pub(super) trait Link: fmt::Debug + Send {
    /// Continues to send a message. `given` is initially 0, and its meaning is defined by the link. The bytes must stay valid and unchanged
    /// until the message is sent.
    fn send(&mut self, header: &Header, outgoing: Outgoing<'_>, given: &mut usize)
    -> Result<Polled, Failure>;

    /// Returns the header of the message from a rank whose payload is next, if it has arrived.
    fn ahead(&mut self, from: Rank) -> Result<Option<Header>, Failure>;

    /// Continues to receive the payload of a message whose header has [arrived](Link::ahead). `place` is for the rest of the payload, or for its next
    /// [`PIECE`]. `taken` is the number of bytes received into it, initially 0. The place must stay valid, and must not be accessed otherwise, until
    /// it is filled. An empty payload is received too.
    fn receive(&mut self, from: Rank, place: &mut [u8], taken: &mut usize) -> Result<Polled, Failure>;

    /// Returns whether a message ends a [nap](Link::nap). Otherwise a waiting rank polls.
    fn wakes_up(&self) -> bool {
        false
    }

    /// Sleeps until the link can make progress, at most for this time. It is called only if a message ends the sleep.
    fn nap(&self, _: Duration) {}

    /// Returns the reason why the connection with a rank is lost, if it is.
    fn lost(&self, _: Rank) -> Option<String> {
        None
    }

    /// Withdraws the messages to and from a rank, and releases their memory, if the link can. They cannot be completed afterwards.
    fn withdraw(&mut self, _: Rank) {}

    /// Returns whether the link may still access memory of a message to or from a rank.
    fn holds_memory(&self, other: Rank) -> bool;

    /// Ends this process, and if possible the job, since the link may still access memory that would return to the program.
    fn end_job(&self, _: &StatusBoard) -> ! {
        signal_hook::low_level::exit(FAILED)
    }
}

/// The result of connecting ranks. The inner error is the reason why they cannot connect, identical on all of them.
pub(super) type Connected<T> = crate::error::Result<Result<T, String>>;

/// The links of a rank: one for collectives and one for point-to-point messages, neither of which waits for the other.
#[derive(Debug)]
pub(super) struct Links {
    /// The name in tables.
    pub(super) name: &'static str,
    pub(super) collectives: Box<dyn Link>,
    pub(super) messages: Box<dyn Link>,
    /// Connections over which the guard of this rank exchanges states and failures with other nodes.
    pub(super) controls: Vec<(Rank, OwnedFd)>,
}
