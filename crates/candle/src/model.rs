//! The built-in models, and functions that build one for a data set.

mod cnn;
mod gpt2;
mod layers;
mod mlp;
mod placed;
mod resnet;
mod transformer;

use candle_core::{D, Tensor};
use candle_nn::Module;
use unisono_collectives::named;

use super::network::{Loss, Network, Parameters};
use unisono_data::Kind;
use unisono_train::{Replica, TrainError};

pub use gpt2::{Gpt2, Gpt2Config};
pub use placed::{Placed, inputs};

pub(crate) use layers::{Layer, Sequence, measure, stage};
#[cfg(feature = "cuda")]
pub(crate) use placed::shape;

named! {
    /// The kind of a built-in model.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ModelKind: "model" {
        /// Fully connected layers, for images and tables.
        Mlp = "mlp",
        /// A small convolutional network, for images.
        Cnn = "cnn",
        /// A small transformer that predicts the next character, for text.
        Transformer = "transformer",
        /// A small residual network with batch norm over the samples of all ranks, for images.
        ResNet = "resnet",
    }
}

/// The numbers of values that a model stores and computes, before it is built. They are floating-point, so they cannot overflow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    /// The number of parameters.
    pub parameters: f64,
    /// The number of input values of a sample.
    pub inputs: f64,
    /// The number of values that a forward pass computes for a sample and keeps until the backward pass.
    pub activations: f64,
    /// The measured ratio of the peak during a backward pass, which includes gradients, to these activations.
    pub with_backward: f64,
}

/// Returns the number of values of a sample, without its targets.
pub(crate) fn inputs_of(data: &Kind) -> usize {
    match data {
        Kind::Images { height, width, channels, .. } => height * width * channels,
        Kind::Table { features, .. } => *features,
        Kind::Text { context, .. } => *context,
    }
}

/// Returns the size of a model for this data with these widths of its hidden layers, as for [`classifier`].
///
/// # Errors
/// [`TrainError::Setting`] if there is no such model for this data.
pub fn size(kind: ModelKind, hidden: Option<&[usize]>, data: &Kind) -> Result<Size, TrainError> {
    let with_backward = if kind == ModelKind::Transformer { 1.4 } else { 3.0 };
    let mut size = Size { parameters: 0.0, inputs: inputs_of(data) as f64, activations: 0.0, with_backward };
    for layer in layers(kind, hidden, 0.0, data)? {
        size.parameters += layer.parameters;
        size.activations += layer.activations;
    }
    Ok(size)
}

pub(crate) fn layers(
    kind: ModelKind,
    hidden: Option<&[usize]>,
    dropout: f64,
    data: &Kind,
) -> Result<Vec<Layer>, TrainError> {
    let other =
        |data: &str, instead: &str| Err(format!("the {kind} does not learn from {data}: use {instead}"));
    let layers = match (kind, data) {
        (ModelKind::Mlp, &(Kind::Images { classes, .. } | Kind::Table { classes, .. })) => {
            Ok(mlp::layers(inputs_of(data), hidden.unwrap_or(&mlp::HIDDEN), classes, dropout))
        }
        (ModelKind::Cnn, &Kind::Images { height, width, channels, classes }) => {
            let refused =
                || format!("images of {height}x{width} pixels are too small for the cnn: use the mlp");
            cnn::layers([height, width, channels], classes).ok_or_else(refused)
        }
        (ModelKind::ResNet, &Kind::Images { height, width, channels, classes }) => {
            let layers =
                resnet::layers([height, width, channels], hidden.unwrap_or(&resnet::HIDDEN), classes);
            layers
                .ok_or_else(|| "--hidden must have the width of at least one block of the resnet".to_owned())
        }
        (ModelKind::Transformer, Kind::Text { context, vocabulary }) => {
            let widths = hidden.unwrap_or(&transformer::HIDDEN);
            transformer::layers(*context, vocabulary.len(), widths, dropout).ok_or_else(|| {
                "--hidden must have the width of each block of the transformer: at least one, all the same, and divisible by 32, such as \
                 384,384,384"
                    .to_owned()
            })
        }
        (_, Kind::Images { .. }) => other("images", "the mlp, the cnn or the resnet"),
        (_, Kind::Table { .. }) => other("tables", "the mlp"),
        (_, Kind::Text { .. }) => other("text", "the transformer"),
    };
    layers.map_err(TrainError::Setting)
}

/// Builds a model for `data` on these parameters, which must be empty. The model turns a batch into logits, one row per target.
pub(crate) fn build(
    kind: ModelKind,
    hidden: Option<&[usize]>,
    dropout: f64,
    data: &Kind,
    parameters: &Parameters,
) -> Result<Sequence, TrainError> {
    let built = Sequence::new(&layers(kind, hidden, dropout, data)?, parameters);
    built.map_err(|error| TrainError::Setting(error.to_string()))
}

/// Builds a model for `data` as a replica for the trainer. It classifies each target of a batch, or predicts it if it is a number. `hidden` sets the
/// widths of the MLP's hidden layers, or of the blocks of the residual network or the transformer; `None` is the default. `dropout` is the
/// probability with which hidden values of the MLP and the transformer are dropped in training, from 0 to below 1.
///
/// The initial values depend only on the seed and the names, so all ranks that call this build the same model. It computes on the device of these
/// parameters, which must be empty.
///
/// # Errors
/// [`TrainError::Setting`] if the model is for another kind of data, or does not support these widths.
pub fn classifier(
    kind: ModelKind,
    hidden: Option<&[usize]>,
    dropout: f64,
    data: &Kind,
    parameters: &Parameters,
) -> Result<impl Replica<Batch = Placed> + use<>, TrainError> {
    Ok(replica(build(kind, hidden, dropout, data, parameters)?, parameters))
}

/// Returns a model that was built on these parameters as a replica for the trainer.
pub(crate) fn replica(model: Sequence, parameters: &Parameters) -> impl Replica<Batch = Placed> + use<> {
    let device = parameters.device().clone();
    Network::new(parameters, move |batch: &Placed| {
        let (inputs, targets, ahead) = batch.tensors(&device)?;
        loss(&Module::forward(&model, &inputs)?, targets, ahead)
    })
}

/// Returns the loss of a batch, with one row of outputs per target. `ahead` is a copy of the targets on a device. A model with one output predicts a
/// number.
fn loss(outputs: &Tensor, targets: &[u32], ahead: Option<&Tensor>) -> candle_core::Result<Loss> {
    match outputs.dim(D::Minus1)? {
        1 => Loss::of_numbers(outputs, targets),
        _ => Loss::of_classes(outputs, targets, ahead),
    }
}

#[cfg(test)]
mod tests;
