//! Batches: the numeric input of a model.

use crate::Normalization;

/// The purpose of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Training: samples vary from epoch to epoch, determined by the seed. The windows of a text move, and images are augmented.
    Training {
        /// The random seed.
        seed: u64,
        /// The epoch.
        epoch: u64,
    },
    /// Evaluation: samples are always the same.
    Evaluation,
}

/// Samples ready for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The model's input.
    pub inputs: Inputs,
    /// The targets, which depend on the [kind](crate::Kind) of the data: one class per image or row, one token per input token, or the
    /// [bits](f32::to_bits) of one number per row.
    pub targets: Vec<u32>,
    /// Number of samples (images, rows or windows).
    pub samples: usize,
}

/// The input of a batch, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum Inputs {
    /// Normalised levels, `samples x height*width*channels` with interleaved channels, or a table's features, `samples x features`.
    Pixels(Vec<f32>),
    /// Tokens, `samples x context`.
    Tokens(Vec<u32>),
}

/// The inputs of samples in their most compact form, which a data server sends.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// The 8-bit levels of images, not yet normalised.
    Levels(Vec<u8>),
    /// Numbers that become [`Inputs::Pixels`] unchanged.
    Numbers(Vec<f32>),
    /// Tokens that become [`Inputs::Tokens`] unchanged.
    Tokens(Vec<u32>),
}

impl Values {
    /// Returns the inputs of a model, with the levels of images normalised.
    pub(crate) fn normalized(self, normalization: Option<&Normalization>) -> Inputs {
        match self {
            Self::Levels(levels) => Inputs::Pixels(normalization.cloned().unwrap_or_default().apply(&levels)),
            Self::Numbers(numbers) => Inputs::Pixels(numbers),
            Self::Tokens(tokens) => Inputs::Tokens(tokens),
        }
    }
}
