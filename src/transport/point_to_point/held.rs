//! Messages that arrive before a matching receive.

use std::io;

use unisono_collectives::Rank;

use super::{PointToPoint, Receive};
use crate::error::{Error, Result};
use crate::kernels;
use crate::transport::Header;

/// The largest number of bytes of held messages.
const MAX_HELD: usize = 1 << 30;

impl PointToPoint {
    /// Completes a receive with a held message.
    pub(super) fn take_held(&mut self, mut receive: Receive, from: Rank, header: &Header, bytes: &[u8]) {
        self.held_bytes -= bytes.len();
        self.match_to(&mut receive, from);
        match receive.call.header.check_matched(header, from, &self.status) {
            Ok(()) => {
                // SAFETY: as in `receive_part`.
                kernels::copy(unsafe { &mut *receive.place }, bytes);
                self.end(receive.call, Ok(from));
            }
            Err(failure) => self.fail(receive.call, failure),
        }
    }

    /// Returns memory for a message that no receive matches.
    pub(super) fn hold(&mut self, size_bytes: usize) -> Result<Vec<u8>> {
        if size_bytes > MAX_HELD - self.held_bytes {
            let cause = io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "messages with tags that no receive has asked for may take {MAX_HELD} bytes; receive messages in the order \
                     in which they are sent, or start their receives earlier"
                ),
            );
            return Err(Error::Memory { size_bytes: self.held_bytes.saturating_add(size_bytes), cause });
        }
        let mut bytes = Vec::new();
        let refused = |_| Error::Memory { size_bytes, cause: io::ErrorKind::OutOfMemory.into() };
        bytes.try_reserve_exact(size_bytes).map_err(refused)?;
        bytes.resize(size_bytes, 0);
        self.held_bytes += size_bytes;
        Ok(bytes)
    }
}
