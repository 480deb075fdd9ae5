//! Batches: the numeric input of a model.

/// The purpose of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Training: samples vary from epoch to epoch, as the seed determines (the windows of a text move, images are
    /// augmented).
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
    /// The targets, as the [kind](crate::Kind) of the data says: one class per image or row, one token per input token, or the
    /// [bits](f32::to_bits) of one number per row.
    pub targets: Vec<u32>,
    /// Number of samples (images, rows or windows).
    pub samples: usize,
}

/// The input of a batch, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum Inputs {
    /// Normalised levels, `samples x height*width*channels`, the channels of a pixel side by side; or a table's features,
    /// `samples x features`.
    Pixels(Vec<f32>),
    /// Tokens, `samples x context`.
    Tokens(Vec<u32>),
}

/// The inputs of samples in their smallest form, which a server of batches sends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Values {
    /// The 8-bit levels of images, not yet normalised.
    Levels(Vec<u8>),
    Numbers(Vec<f32>),
    Tokens(Vec<u32>),
}

impl From<Inputs> for Values {
    fn from(inputs: Inputs) -> Self {
        match inputs {
            Inputs::Pixels(numbers) => Self::Numbers(numbers),
            Inputs::Tokens(tokens) => Self::Tokens(tokens),
        }
    }
}

impl From<Values> for Inputs {
    fn from(values: Values) -> Self {
        match values {
            Values::Levels(levels) => Self::normalised(&levels),
            Values::Numbers(numbers) => Self::Pixels(numbers),
            Values::Tokens(tokens) => Self::Tokens(tokens),
        }
    }
}

impl Inputs {
    /// Those of images with these 8-bit levels.
    pub(crate) fn normalised(levels: &[u8]) -> Self {
        Self::Pixels(levels.iter().map(|&level| normalise(level)).collect())
    }
}

/// Mean and standard deviation of MNIST's grey levels in 0..=1: the customary normalisation,
/// and close enough for any image.
pub(super) const GREY: (f32, f32) = (0.1307, 0.3081);

/// The normalised value of each grey level.
static NORMALISED: [f32; 256] = {
    let (mean, deviation) = GREY;
    let (mut of, mut grey) = ([0.0; 256], 0);
    while grey < of.len() {
        of[grey] = (grey as f32 / 255.0 - mean) / deviation;
        grey += 1;
    }
    of
};

/// Normalises a grey level.
pub(super) fn normalise(grey: u8) -> f32 {
    NORMALISED[usize::from(grey)]
}
