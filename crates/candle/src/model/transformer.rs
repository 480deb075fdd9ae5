//! A small transformer that predicts the next character (GPT: causal, pre-norm).
//!
//! Its layers have no bias, because they learn equally well without.

use candle_core::{IndexOp, Result, Tensor};

use super::layers::Layer;
use crate::network::{CausalAttention, Dropout, Linear, Parameters, Residual, RmsNorm, SquaredRelu, chain};

/// The default width of each block.
pub(super) const HIDDEN: [usize; 4] = [128; 4];
const HEAD: usize = 32;
/// The width of the perceptron's hidden layer, relative to the width of the block.
const EXPANSION: usize = 4;
/// Small, so that all characters are initially about equally likely.
const OUTPUT_GAIN: f64 = 0.05;

/// Returns the layers: the embedding of characters, a block of each of these widths, and the output layer. Returns `None` unless the widths are
/// equal, and divisible into heads.
pub(super) fn layers(
    context: usize,
    vocabulary: usize,
    widths: &[usize],
    dropout: f64,
) -> Option<Vec<Layer>> {
    let (&width, blocks) = (widths.first()?, widths.len());
    if !width.is_multiple_of(HEAD) || widths.iter().any(|&other| other != width) {
        return None;
    }
    let (rows, square) = (context as f64 * width as f64, (width as f64).powi(2));
    let logits = context as f64 * vocabulary as f64;
    let size = [(vocabulary + context) as f64 * width as f64, 3.0 * rows];
    let embedding = Layer::new("embedding", size, move |parameters| {
        let characters = parameters.add("characters", (vocabulary, width), 0.3)?;
        let positions = parameters.add("positions", (context, width), 0.1)?;
        // The result is `samples*context x width`.
        Ok(move |inputs: &Tensor, _| {
            let (samples, context) = inputs.dims2()?;
            characters
                .embedding(&inputs.flatten_all()?)?
                .reshape((samples, context, width))?
                .broadcast_add(&positions.i(..context)?)?
                .reshape((samples * context, width))
        })
    });
    let block = |number: usize| {
        let name = format!("block{number}");
        let expansion = EXPANSION as f64;
        // The results of six products, and of norms, attention, sums and squares.
        let size = [(4.0 + 2.0 * expansion) * square, (10.0 + 2.0 * expansion) * rows];
        Layer::new(name.clone(), size, move |parameters| {
            residual_block(parameters, &name, [width, blocks], dropout)
        })
    };
    let of_output = [width as f64 * vocabulary as f64, rows + 2.0 * logits];
    let output = Layer::new("output", of_output, move |parameters| {
        let linear = Linear::without_bias(parameters, "output", width, vocabulary, OUTPUT_GAIN)?;
        Ok(move |x: &Tensor, _| chain(&linear.parameters, &[&RmsNorm, &linear], x))
    });
    Some([embedding].into_iter().chain((0..blocks).map(block)).chain([output]).collect())
}

/// Builds a block: attention, then a perceptron, each added to its input. The input and the result are `samples*context x width`.
fn residual_block(
    parameters: &Parameters,
    name: &str,
    [width, blocks]: [usize; 2],
    dropout: f64,
) -> Result<impl Fn(&Tensor, usize) -> Result<Tensor> + Send + 'static + use<>> {
    let weight = |layer: &str, inputs: usize, outputs: usize, gain: f64| {
        Linear::without_bias(parameters, &format!("{name}.{layer}"), inputs, outputs, gain)
    };
    // The outputs of a block are initially small, so that the block passes its input through.
    let quiet = 1.0 / (2.0 * blocks as f64);
    let hidden = EXPANSION * width;
    // Queries, keys and values are computed side by side.
    let (query, key) = (weight("query", width, width, 1.0)?, weight("key", width, width, 1.0)?);
    let attend = query.joined(key).joined(weight("value", width, width, 1.0)?);
    let mix = weight("mix", width, width, quiet)?;
    let expand = weight("expand", width, hidden, 1.0)?;
    let contract = weight("contract", hidden, width, quiet)?;
    let (first, second) = (Dropout::new(parameters, dropout)?, Dropout::new(parameters, dropout)?);
    Ok(move |x: &Tensor, samples: usize| {
        let attention = CausalAttention { context: x.dim(0)? / samples, heads: width / HEAD };
        let attended = Residual { parts: &[&RmsNorm, &attend, &attention, &mix, &first], shortcut: None };
        let perceived =
            Residual { parts: &[&RmsNorm, &expand, &SquaredRelu, &contract, &second], shortcut: None };
        chain(&attend.parameters, &[&attended, &perceived], x)
    })
}
