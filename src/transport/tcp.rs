//! The link over TCP: one connection for every pair of ranks.
//!
//! A message is a header, followed by its payload. The kernel reads both in place, and writes long payloads to their destination.

use std::net::TcpStream;
use std::time::Duration;

use unisono_collectives::Rank;

use super::half::Polled;
use super::link::Link;
use super::{Failure, Header, Outgoing};

mod connect;
mod socket;
mod stream;
#[cfg(test)]
pub(super) mod tests;

pub(super) use connect::{controls, link};
use socket::Socket;
use stream::Stream;

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
    fn name(&self) -> &'static str {
        "tcp"
    }

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
        stream::wait(self.streams.iter().flatten(), most);
    }

    fn lost(&self, other: Rank) -> Option<String> {
        Some(self.streams.get(other)?.as_ref()?.lost()?.to_string())
    }

    fn holds_memory(&self, _: Rank) -> bool {
        false
    }
}
