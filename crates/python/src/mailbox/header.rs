//! What goes ahead of a message.

use std::fmt;

/// The longest name of an element type.
const KIND_BYTES: usize = 24;
const SIZE_BYTES: usize = 16 + KIND_BYTES;

/// The tag, size and element type of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tag: i64,
    pub(super) size_bytes: usize,
    kind: String,
}

impl Header {
    pub(super) fn new(tag: i64, size_bytes: usize, kind: &str) -> Self {
        Self { tag, size_bytes, kind: kind[..kind.floor_char_boundary(KIND_BYTES)].to_owned() }
    }

    pub(super) fn encoded(&self) -> [u8; SIZE_BYTES] {
        let mut bytes = [0; SIZE_BYTES];
        bytes[..8].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.size_bytes.to_ne_bytes());
        bytes[16..16 + self.kind.len()].copy_from_slice(self.kind.as_bytes());
        bytes
    }

    pub(super) fn decoded(bytes: [u8; SIZE_BYTES]) -> Self {
        let word = |at: usize| bytes[at..at + 8].try_into().expect("eight bytes");
        let kind = String::from_utf8_lossy(&bytes[16..]).trim_end_matches('\0').to_owned();
        Self { tag: i64::from_ne_bytes(word(0)), size_bytes: usize::from_ne_bytes(word(8)), kind }
    }
}

impl Default for Header {
    fn default() -> Self {
        Self::new(0, 0, "")
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {} with tag {}", self.size_bytes, self.kind, self.tag)
    }
}
