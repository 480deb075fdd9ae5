//! The link over TCP: one connection for every pair of ranks.
//!
//! A message is a header, followed by its payload. The kernel reads both in place, and writes long payloads to their destination.

use std::fmt;
use std::io::IoSlice;
use std::net::TcpStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use unisono_collectives::Rank;

use super::half::Polled;
use super::link::Link;
use super::{Failure, Header, Outgoing};

mod connect;
mod stream;
#[cfg(test)]
pub(super) mod tests;

pub(super) use connect::{link, sockets};
use stream::Stream;

/// A connected socket, whose calls never block, except [`Socket::wait`]. The simulation has its own type.
trait Socket: fmt::Debug + Send + Sized {
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

#[derive(Debug)]
struct Tcp<S = TcpStream> {
    /// By rank of the world; `None` for those that share memory with this one.
    streams: Vec<Option<Stream<S>>>,
}

impl<S: Socket> Tcp<S> {
    fn stream(&mut self, rank: Rank) -> &mut Stream<S> {
        self.streams[rank].as_mut().expect("a connection with a rank that shares no memory with this one")
    }
}

impl<S: Socket> Link for Tcp<S> {
    fn send(
        &mut self,
        header: &Header,
        Outgoing { to, bytes }: Outgoing<'_>,
        given: &mut usize,
    ) -> Result<Polled, Failure> {
        let taken = self.stream(to).send(bytemuck::bytes_of(header), bytes, *given);
        *given += taken;
        Ok(Polled::of(taken > 0, *given == size_of::<Header>() + bytes.len()))
    }

    fn ahead(&mut self, from: Rank) -> Result<Option<Header>, Failure> {
        Ok(self.stream(from).ahead())
    }

    fn receive(&mut self, from: Rank, place: &mut [u8], taken: &mut usize) -> Result<Polled, Failure> {
        let received = self.stream(from).receive(&mut place[*taken..]);
        *taken += received;
        Ok(Polled::of(received > 0, *taken == place.len()))
    }

    fn wakes_up(&self) -> bool {
        true
    }

    fn nap(&self, most: Duration) {
        let awaited = self.streams.iter().flatten().map(|stream| (&stream.socket, stream.events()));
        S::wait(awaited.filter(|(_, events)| !events.is_empty()), most);
    }

    fn lost(&self, other: Rank) -> Option<String> {
        Some(self.streams.get(other)?.as_ref()?.lost?.to_string())
    }

    fn holds_memory(&self, _: Rank) -> bool {
        false
    }
}
