//! The wire format of gradients.

use std::fmt;
use std::str::FromStr;

use super::Compression;

/// The wire format of gradients. Sums are computed in `f32` and rounded for sending.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wire {
    /// Unchanged.
    F32,
    /// Half the bytes, the range of `f32`, 8 bits of precision.
    Bf16,
    /// Half the bytes, 11 bits of precision, and a narrow range.
    F16,
    /// Fewer bytes between nodes, with error feedback; unchanged within a node.
    Compressed(Compression),
}

/// An invalid name of a wire format, or one that `auto` cannot choose.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownWire {
    /// There is no wire format of this name.
    #[error("no wire format is called `{0}`; there are f32, bf16 and f16, and between nodes {names}", names = Compression::NAMES)]
    Unknown(String),
    /// The speed of this format cannot be predicted.
    #[error(
        "the message size of {0} depends on the gradients, so auto cannot predict it: remove it from the list"
    )]
    Unpredictable(String),
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.pad("f32"),
            Self::Bf16 => f.pad("bf16"),
            Self::F16 => f.pad("f16"),
            Self::Compressed(compression) => compression.fmt(f),
        }
    }
}

impl FromStr for Wire {
    type Err = UnknownWire;

    fn from_str(text: &str) -> Result<Self, UnknownWire> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            _ => text.parse().map(Self::Compressed).map_err(|_| UnknownWire::Unknown(text.to_owned())),
        }
    }
}
