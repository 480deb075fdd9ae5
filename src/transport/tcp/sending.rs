//! The sending half of an exchange.

use unisono_collectives::Rank;

use super::Tcp;
use crate::transport::half::Half;
use crate::transport::{Failure, Header, Outgoing};

/// A message on its way to the kernel.
pub(super) struct Sending<'a> {
    tcp: &'a Tcp,
    to: Rank,
    header: Header,
    bytes: &'a [u8],
    /// How much of header and payload the kernel has taken.
    taken: usize,
}

impl<'a> Sending<'a> {
    pub(super) fn new(tcp: &'a Tcp, header: &Header, outgoing: Outgoing<'a>) -> Self {
        let Outgoing { to, bytes } = outgoing;
        Self { tcp, to, header: header.of_size(bytes.len()), bytes, taken: 0 }
    }
}

impl Half for Sending<'_> {
    fn other(&self) -> Rank {
        self.to
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.taken == size_of::<Header>() + self.bytes.len()
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        if self.is_done() {
            return Ok(false);
        }
        let taken = self.tcp.stream(self.to).send(bytemuck::bytes_of(&self.header), self.bytes, self.taken);
        self.taken += taken;
        Ok(taken > 0)
    }
}
