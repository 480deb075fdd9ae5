//! The models that can be trained, and how to build one for a data set.

mod cnn;
mod fused;
mod layers;
mod mlp;
mod patches;
mod rows;
mod transformer;

use candle_core::{Tensor, Var};
use unisono_collectives::named;

use crate::data::Kind;
use layers::Parameters;

/// A network that turns a batch into logits.
pub trait Model: Send {
    /// The logits for `inputs`, one row per target: `rows x classes`.
    ///
    /// Images come as `samples x height*width` of `f32` and give a row per sample; text comes
    /// as `samples x context` of `u32` and gives a row per token.
    ///
    /// # Errors
    ///
    /// If `inputs` are not shaped like the data the model was built for.
    fn forward(&self, inputs: &Tensor) -> candle_core::Result<Tensor>;
}

/// Which model to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKind {
    /// Fully connected layers, for images.
    Mlp,
    /// A small convolutional network, for images.
    Cnn,
    /// A small transformer that predicts the next character, for text.
    Transformer,
}

impl ModelKind {
    /// Every model there is.
    pub const ALL: [Self; 3] = [Self::Mlp, Self::Cnn, Self::Transformer];

    /// The name by which a user asks for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Cnn => "cnn",
            Self::Transformer => "transformer",
        }
    }
}

named!(ModelKind, "model");

/// Why a model could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The model is for another kind of data.
    #[error("the {model} does not learn from {data}: use {instead}")]
    WrongData {
        /// The model asked for.
        model: ModelKind,
        /// The data at hand.
        data: &'static str,
        /// What learns from such data.
        instead: &'static str,
    },
    /// The images have no room for the model's convolutions.
    #[error("images of {height}x{width} pixels are too small for the cnn: use the mlp")]
    TooSmall {
        /// Rows of pixels.
        height: usize,
        /// Columns of pixels.
        width: usize,
    },
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// A model's parameters, each with a name of its own, sorted by name.
pub type NamedParameters = Vec<(String, Var)>;

/// Builds a model for `data` and returns it with its parameters.
///
/// The initial values follow from the seed and the names alone, so every rank that calls this
/// holds the same model.
///
/// # Errors
///
/// If the model is for another kind of data.
pub fn build(
    kind: ModelKind,
    data: &Kind,
    seed: u64,
) -> Result<(Box<dyn Model>, NamedParameters), ModelError> {
    let mut parameters = Parameters::new(seed);
    let root = &mut parameters;
    let model: Box<dyn Model> = match (kind, data) {
        (ModelKind::Mlp, &Kind::Images { height, width, classes }) => {
            Box::new(mlp::Mlp::new(root, height * width, classes)?)
        }
        (ModelKind::Cnn, &Kind::Images { height, width, classes }) => {
            let cnn = cnn::Cnn::new(root, height, width, classes)?;
            Box::new(cnn.ok_or(ModelError::TooSmall { height, width })?)
        }
        (ModelKind::Transformer, Kind::Text { context, vocabulary }) => {
            Box::new(transformer::Transformer::new(root, *context, vocabulary.len())?)
        }
        (model, Kind::Images { .. }) => {
            return Err(ModelError::WrongData { model, data: "images", instead: "the mlp or the cnn" });
        }
        (model, Kind::Text { .. }) => {
            return Err(ModelError::WrongData { model, data: "text", instead: "the transformer" });
        }
    };
    Ok((model, parameters.sorted()))
}

#[cfg(test)]
mod tests;
