//! The data of an exchange: outgoing bytes, and the target of incoming ones.

use unisono_collectives::{Combine, Rank};

use crate::kernels::{self, Definition, Kernel};

#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) to: Rank,
    pub(crate) bytes: &'a [u8],
}

/// The target of bytes from another rank.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) from: Rank,
    pub(crate) target: Target<'a>,
}

/// The target of incoming bytes. They may arrive in several pieces of whole elements.
///
/// Sizes have 32 bits, so that a target consists of five words. A sixth would delay the shortest messages, as targets are passed by value.
#[derive(Debug)]
pub(crate) enum Target<'a> {
    /// Stores them unchanged.
    Place(&'a mut [u8]),
    /// Combines them with the held elements by a kernel.
    Apply { held: &'a mut [u8], held_size_bytes: u32, wire_size_bytes: u32, kernel: Kernel },
    /// Combines them with the held elements by a custom reduction.
    Custom { held: &'a mut [u8], element_bytes: u32, combine: Combine, custom: &'static Definition },
}

const _: () = assert!(size_of::<Target<'_>>() == 5 * size_of::<usize>());

impl Target<'_> {
    /// Returns the number of expected bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        match self {
            Self::Place(place) => place.len(),
            Self::Custom { held, .. } => held.len(),
            Self::Apply { held, held_size_bytes, wire_size_bytes, .. } => {
                converted(held.len(), *held_size_bytes, *wire_size_bytes)
            }
        }
    }

    /// Returns the number of bytes that are consumed together: the size of an incoming element.
    pub(crate) fn wire_size_bytes(&self) -> usize {
        match *self {
            Self::Place(_) => 1,
            Self::Apply { wire_size_bytes, .. } => wire_size_bytes as usize,
            Self::Custom { element_bytes, .. } => element_bytes as usize,
        }
    }

    /// Consumes a piece that starts at `offset_bytes`.
    pub(crate) fn accept(&mut self, offset_bytes: usize, piece: &[u8]) {
        match self {
            Self::Place(place) => kernels::copy(&mut place[offset_bytes..offset_bytes + piece.len()], piece),
            Self::Apply { held, held_size_bytes, wire_size_bytes, kernel } => {
                let held_at = |wire_bytes| converted(wire_bytes, *wire_size_bytes, *held_size_bytes);
                kernel(&mut held[held_at(offset_bytes)..held_at(offset_bytes + piece.len())], piece);
            }
            Self::Custom { held, combine, custom, .. } => {
                custom.reduce(*combine, &mut held[offset_bytes..offset_bytes + piece.len()], piece);
            }
        }
    }
}

/// Returns the size of elements of `size_bytes` in a format of another element size. Formats are mostly equal, and a division is slow.
#[inline]
fn converted(size_bytes: usize, from_size_bytes: u32, to_size_bytes: u32) -> usize {
    if from_size_bytes == to_size_bytes {
        size_bytes
    } else {
        size_bytes / from_size_bytes as usize * to_size_bytes as usize
    }
}
