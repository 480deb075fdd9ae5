//! The wire formats that can be simulated.

use std::fmt;
use std::str::FromStr;

use unisono_compress::{Compression, Format};

/// A wire format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Wire {
    F32,
    /// `bf16` or `f16`.
    Half(&'static str),
    Compressed(Compression),
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.pad("f32"),
            Self::Half(name) => f.pad(name),
            Self::Compressed(compression) => compression.fmt(f),
        }
    }
}

impl FromStr for Wire {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Half("bf16")),
            "f16" => Ok(Self::Half("f16")),
            _ => match text.parse() {
                Ok(Compression::Threshold { .. }) => {
                    Err("how much threshold sends depends on the gradients: simulate \
                                                          topk:FRACTION, which sends as much as you expect"
                        .to_owned())
                }
                Ok(compression) => Ok(Self::Compressed(compression)),
                Err(error) => Err(format!("{error}; and f32, bf16 and f16")),
            },
        }
    }
}

impl Wire {
    /// Returns its form in the library.
    pub(super) fn format(self) -> Format {
        match self {
            Self::F32 => Format::F32,
            Self::Half(_) => Format::Half,
            Self::Compressed(compression) => Format::Compressed(compression),
        }
    }
}
