//! The built-in models, and how to build one for a data set.

mod cnn;
mod gpt2;
mod layers;
mod mlp;
mod placed;
mod pool;
mod resnet;
mod size;
mod stages;
mod transformer;

use candle_core::{D, Device, Tensor};
use candle_nn::Module;
use unisono_collectives::named;

use super::network::{Loss, Network, Parameters};
use unisono_data::{Batch, Kind};
use unisono_train::{Replica, TrainError};

pub use gpt2::{Gpt2, Gpt2Config};
pub use layers::Layer;
pub use placed::{Placed, inputs};
pub use size::Size;

pub(crate) use placed::Input;
#[cfg(feature = "cuda")]
pub(crate) use placed::shape;
pub(crate) use stages::{measure, stage};

use layers::Sequence;

named! {
    /// The kind of a built-in model.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ModelKind: "model" {
        /// Fully connected layers, for images.
        Mlp = "mlp",
        /// A small convolutional network, for images.
        Cnn = "cnn",
        /// A small transformer that predicts the next character, for text.
        Transformer = "transformer",
        /// A small residual network with batch norm over the samples of all ranks, for images.
        ResNet = "resnet",
    }
}

impl ModelKind {
    /// Returns whether the widths of its hidden layers can be chosen.
    pub(super) const fn has_widths(self) -> bool {
        !matches!(self, Self::Cnn)
    }

    /// Returns whether it has layers that drop values.
    pub(super) const fn has_dropout(self) -> bool {
        matches!(self, Self::Mlp | Self::Transformer)
    }
}

/// The reason why a model could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The model is for another kind of data.
    #[error("the {model} does not learn from {data}: use {instead}")]
    WrongData {
        /// The requested model.
        model: ModelKind,
        /// The kind of data.
        data: &'static str,
        /// The models for such data.
        instead: &'static str,
    },
    /// The images are too small for the model's convolutions.
    #[error("images of {height}x{width} pixels are too small for the cnn: use the mlp")]
    TooSmall {
        /// Rows of pixels.
        height: usize,
        /// Columns of pixels.
        width: usize,
    },
    /// A residual network has a block at least.
    #[error("the resnet needs the width of at least one block")]
    NoBlock,
    /// The blocks of a transformer are equal, and consist of heads.
    #[error(
        "the transformer needs the width of each block: at least one, all the same, and divisible by 32, such as 384,384,384"
    )]
    UnequalBlocks,
    /// A tensor could not be created.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl From<ModelError> for TrainError {
    fn from(error: ModelError) -> Self {
        Self::Setting(error.to_string())
    }
}

/// Builds a model for `data` and returns it with its parameters; `hidden` gives the widths of the MLP's hidden layers or of the
/// blocks of the residual network or the transformer, `None` the default; `dropout` the probability with which hidden values of the MLP and the transformer
/// are dropped in training, from 0 to below 1.
///
/// The model turns a batch into logits, one row per target: `rows x classes`. Images come as `samples x height*width` of `f32`, and have
/// a row per sample; text comes as `samples x context` of `u32`, and has a row per token.
///
/// The initial values depend only on the seed and the names, so all ranks that call this build the same model. It computes
/// on `device`.
///
/// # Errors
///
/// If the model is for another kind of data.
pub fn build(
    kind: ModelKind,
    hidden: Option<&[usize]>,
    dropout: f64,
    data: &Kind,
    seed: u64,
    device: &Device,
) -> Result<(Box<dyn Module + Send>, Parameters), ModelError> {
    let parameters = Parameters::on(device, seed)?;
    let layers = layers(kind, hidden, dropout, data)?;
    Ok((Box::new(Sequence::new(&layers, &parameters)?), parameters))
}

/// Returns the layers of a model for `data`, as for [`build`], in order.
///
/// # Errors
///
/// If the model is for another kind of data.
pub fn layers(
    kind: ModelKind,
    hidden: Option<&[usize]>,
    dropout: f64,
    data: &Kind,
) -> Result<Vec<Layer>, ModelError> {
    let other = |data, instead| Err(ModelError::WrongData { model: kind, data, instead });
    match (kind, data) {
        (ModelKind::Mlp, &Kind::Images { height, width, channels, classes }) => {
            let levels = height * width * channels;
            Ok(mlp::layers(levels, hidden.unwrap_or(&mlp::HIDDEN), classes, dropout))
        }
        (ModelKind::Mlp, &Kind::Table { features, classes }) => {
            Ok(mlp::layers(features, hidden.unwrap_or(&mlp::HIDDEN), classes, dropout))
        }
        (ModelKind::Cnn, &Kind::Images { height, width, channels, classes }) => {
            cnn::layers([height, width, channels], classes).ok_or(ModelError::TooSmall { height, width })
        }
        (ModelKind::ResNet, &Kind::Images { height, width, channels, classes }) => {
            let widths = hidden.unwrap_or(&resnet::HIDDEN);
            resnet::layers([height, width, channels], widths, classes).ok_or(ModelError::NoBlock)
        }
        (ModelKind::Transformer, Kind::Text { context, vocabulary }) => {
            let widths = hidden.unwrap_or(&transformer::HIDDEN);
            transformer::layers(*context, vocabulary.len(), widths, dropout).ok_or(ModelError::UnequalBlocks)
        }
        (_, Kind::Images { .. }) => other("images", "the mlp, the cnn or the resnet"),
        (_, Kind::Table { .. }) => other("tables", "the mlp"),
        (_, Kind::Text { .. }) => other("text", "the transformer"),
    }
}

/// Builds a model for `data` as a replica for the trainer, which classifies each target of a batch. It computes on the device of
/// these parameters, of which there are none yet.
///
/// # Errors
///
/// As [`build`].
pub fn classifier(
    kind: ModelKind,
    hidden: Option<&[usize]>,
    dropout: f64,
    data: &Kind,
    parameters: &Parameters,
) -> Result<impl Replica<Batch = Batch> + use<>, ModelError> {
    of_batches(kind, hidden, dropout, data, parameters)
}

/// Like [`classifier`](Self::classifier), for batches of another type, which may be on the device of the
/// parameters already.
pub(crate) fn of_batches<B: Input>(
    kind: ModelKind,
    hidden: Option<&[usize]>,
    dropout: f64,
    data: &Kind,
    parameters: &Parameters,
) -> Result<impl Replica<Batch = B> + use<B>, ModelError> {
    let model = Sequence::new(&layers(kind, hidden, dropout, data)?, parameters)?;
    let device = parameters.device().clone();
    Ok(Network::new(parameters, move |batch: &B| {
        let (inputs, targets, ahead) = batch.tensors(&device)?;
        loss(&Module::forward(&model, &inputs)?, targets, ahead)
    }))
}

/// Returns the loss of a batch, one row of outputs per target; `ahead` are those on a device. A model with one output predicts a number.
fn loss(outputs: &Tensor, targets: &[u32], ahead: Option<&Tensor>) -> candle_core::Result<Loss> {
    match outputs.dim(D::Minus1)? {
        1 => Loss::of_numbers(outputs, targets),
        _ => Loss::of_classes(outputs, targets, ahead),
    }
}

/// Returns the size of a model for this data; `None` if the model is for other data.
pub fn size(kind: ModelKind, hidden: Option<&[usize]>, data: &Kind) -> Option<Size> {
    match (kind, data) {
        (ModelKind::Mlp, &Kind::Images { height, width, channels, classes }) => {
            let levels = height as f64 * width as f64 * channels as f64;
            Some(mlp::size(levels, hidden.unwrap_or(&mlp::HIDDEN), classes))
        }
        (ModelKind::Mlp, &Kind::Table { features, classes }) => {
            Some(mlp::size(features as f64, hidden.unwrap_or(&mlp::HIDDEN), classes))
        }
        (ModelKind::Cnn, &Kind::Images { height, width, channels, classes }) => {
            cnn::size([height, width, channels], classes)
        }
        (ModelKind::ResNet, &Kind::Images { height, width, channels, classes }) => {
            let widths = hidden.unwrap_or(&resnet::HIDDEN);
            Some(resnet::size([height, width], channels, widths, classes))
        }
        (ModelKind::Transformer, Kind::Text { context, vocabulary }) => {
            let widths = hidden.unwrap_or(&transformer::HIDDEN);
            Some(transformer::size(*context as f64, vocabulary.len() as f64, widths))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
