//! What an exchange moves: bytes for another rank, and what becomes of those that arrive.

use unisono_collectives::Rank;

use super::Header;
use crate::kernels::Kernel;

/// The size of the longest segment to another node: MPIs send messages of 64 KiB, their own header with them, at once over TCP, and
/// would ask before they send longer ones. Asking takes longer than sending: a wire of 1 Gbit/s is idle for more than half of the
/// time (measured: 335 and 150 ms for 16 MiB over two ranks).
pub(crate) const FAR_SEGMENT: usize = (64 << 10) - 256;

/// What the two messages of an exchange say: the same, if they are of one collective call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Headers<'a> {
    pub(crate) sent: &'a Header,
    /// What the message that arrives must say.
    pub(crate) awaited: &'a Header,
}

impl<'a> From<&'a Header> for Headers<'a> {
    #[inline]
    fn from(header: &'a Header) -> Self {
        Self { sent: header, awaited: header }
    }
}

/// Bytes for another rank.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) to: Rank,
    pub(crate) bytes: &'a [u8],
}

/// Where bytes from another rank go.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) from: Rank,
    pub(crate) target: Target<'a>,
}

/// What happens to bytes that arrive. They may arrive in several pieces of whole elements.
#[derive(Debug)]
pub(crate) enum Target<'a> {
    /// They take the place of what is here, as they are.
    Place(&'a mut [u8]),
    /// A kernel works them into what is held.
    Apply {
        held: &'a mut [u8],
        /// The size of an element that is held.
        held_size_bytes: usize,
        /// The size of an element that arrives.
        wire_size_bytes: usize,
        kernel: Kernel,
    },
}

impl Target<'_> {
    /// How many bytes must arrive.
    pub(crate) fn size_bytes(&self) -> usize {
        match self {
            Self::Place(place) => place.len(),
            Self::Apply { held, held_size_bytes, wire_size_bytes, .. } => {
                held.len() / held_size_bytes * wire_size_bytes
            }
        }
    }

    /// Takes in the piece that begins `offset_bytes` after the first byte.
    pub(crate) fn accept(&mut self, offset_bytes: usize, piece: &[u8]) {
        match self {
            Self::Place(place) => place[offset_bytes..offset_bytes + piece.len()].copy_from_slice(piece),
            Self::Apply { held, held_size_bytes, wire_size_bytes, kernel } => {
                let held_at = |wire_bytes: usize| wire_bytes / *wire_size_bytes * *held_size_bytes;
                kernel(&mut held[held_at(offset_bytes)..held_at(offset_bytes + piece.len())], piece);
            }
        }
    }
}
