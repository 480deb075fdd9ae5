//! The sockets under connections.

use std::fmt;
use std::io::IoSlice;
use std::net::TcpStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

/// A connected socket, whose calls never block, except [`Socket::wait`]. The simulation has its own type.
pub(super) trait Socket: fmt::Debug + Send + Sized {
    /// Sends as much as the kernel accepts of a header and its payload. Returns the number of bytes.
    fn send(&self, header: &[u8], payload: &[u8]) -> Result<usize, Errno>;

    /// Receives available bytes into a non-empty place. Returns their number; 0 if no more will arrive.
    fn receive(&self, place: &mut [u8]) -> Result<usize, Errno>;

    /// Sleeps until one of these events has happened, at most for this time.
    fn wait<'a>(awaited: impl Iterator<Item = (&'a Self, PollFlags)>, most: Duration)
    where
        Self: 'a;
}

impl Socket for TcpStream {
    #[inline]
    fn send(&self, header: &[u8], payload: &[u8]) -> Result<usize, Errno> {
        let bytes = [IoSlice::new(header), IoSlice::new(payload)];
        // A program in C may not ignore SIGPIPE.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(self, &bytes, &mut SendAncillaryBuffer::default(), flags)
    }

    #[inline]
    fn receive(&self, place: &mut [u8]) -> Result<usize, Errno> {
        rustix::net::recv(self, place, RecvFlags::DONTWAIT).map(|(_, received)| received)
    }

    fn wait<'a>(awaited: impl Iterator<Item = (&'a Self, PollFlags)>, most: Duration) {
        let mut awaited: Vec<_> = awaited.map(|(socket, events)| PollFd::new(socket, events)).collect();
        let most = Timespec::try_from(most).ok();
        // If it fails, the rank polls again at once.
        let _ = rustix::event::poll(&mut awaited, most.as_ref());
    }
}
