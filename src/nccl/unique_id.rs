//! The identity of an NCCL communicator, by which ranks find each other.

use super::library::Library;
use super::sys;
use crate::error::Result;

/// The identity of a communicator. One rank creates it and sends it to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; Self::SIZE_BYTES]);

impl UniqueId {
    /// Its size.
    pub const SIZE_BYTES: usize = sys::NCCL_UNIQUE_ID_BYTES as usize;

    /// Creates a unique id. The process listens for the other ranks at one of its network addresses, which the id contains.
    ///
    /// # Errors
    /// [`Error::Nccl`](crate::Error::Nccl) if NCCL finds no network, not even the loopback.
    pub fn new(library: &Library) -> Result<Self> {
        let id = library.functions().unique_id()?;
        Ok(Self(id.internal.map(|byte| byte as u8)))
    }

    /// Returns the bytes, to be sent to the other ranks.
    pub fn as_bytes(&self) -> &[u8; Self::SIZE_BYTES] {
        &self.0
    }

    /// Returns the id that another rank has sent.
    pub fn from_bytes(bytes: [u8; Self::SIZE_BYTES]) -> Self {
        Self(bytes)
    }

    pub(super) fn raw(self) -> sys::ncclUniqueId {
        sys::ncclUniqueId { internal: self.0.map(|byte| byte as _) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_survives_conversion_to_bytes() {
        let bytes = std::array::from_fn(|index| 255 - index as u8);
        let id = UniqueId::from_bytes(bytes);
        assert_eq!(UniqueId(id.raw().internal.map(|byte| byte as u8)), id);
        assert_eq!(id.as_bytes(), &bytes);
    }
}
