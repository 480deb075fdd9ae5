//! A small transformer that predicts the next character (GPT: causal, pre-norm).
//!
//! Its layers have no bias, because they learn equally well without.

use candle_core::{IndexOp, Result, Tensor};

use super::layers::Layer;
use crate::network::{CausalAttention, Dropout, Linear, Parameters, Residual, RmsNorm, SquaredRelu, chain};

/// The default width of each block.
pub(super) const HIDDEN: [usize; 4] = [128; 4];
/// The width of a head.
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
    let block = |number: usize| {
        let name = format!("block{number}");
        let expansion = EXPANSION as f64;
        // The results of six products, and of norms, attention, sums and squares.
        let size = [(4.0 + 2.0 * expansion) * square, (10.0 + 2.0 * expansion) * rows];
        Layer::new(name.clone(), size, move |parameters| {
            let block = Block::new(parameters, &name, [width, blocks], dropout)?;
            Ok(move |x: &Tensor, samples| block.forward(x, samples))
        })
    };
    let of_output = [width as f64 * vocabulary as f64, rows + 2.0 * logits];
    let output = Layer::new("output", of_output, move |parameters| {
        let linear = Linear::without_bias(parameters, "output", width, vocabulary, OUTPUT_GAIN)?;
        let parameters = parameters.clone();
        Ok(move |x: &Tensor, _| chain(&parameters, &[&RmsNorm, &linear], x))
    });
    let embedding = embedding(context, vocabulary, width);
    Some([embedding].into_iter().chain((0..blocks).map(block)).chain([output]).collect())
}

/// Returns the embeddings of characters, `vocabulary x width`, and of positions, `context x width`. Their sums are `samples*context x width`.
fn embedding(context: usize, vocabulary: usize, width: usize) -> Layer {
    let size = [(vocabulary + context) as f64 * width as f64, 3.0 * context as f64 * width as f64];
    Layer::new("embedding", size, move |parameters| {
        let characters = parameters.add("characters", (vocabulary, width), 0.3)?;
        let positions = parameters.add("positions", (context, width), 0.1)?;
        Ok(move |inputs: &Tensor, _| {
            let (samples, context) = inputs.dims2()?;
            characters
                .embedding(&inputs.flatten_all()?)?
                .reshape((samples, context, width))?
                .broadcast_add(&positions.i(..context)?)?
                .reshape((samples * context, width))
        })
    })
}

/// Attention, then a perceptron, each added to its input.
struct Block {
    /// Queries, keys and values, side by side.
    attend: Linear,
    mix: Linear,
    expand: Linear,
    contract: Linear,
    /// The dropout of each half, applied to its output.
    dropouts: [Dropout; 2],
}

impl Block {
    fn new(parameters: &Parameters, name: &str, [width, blocks]: [usize; 2], dropout: f64) -> Result<Self> {
        let weight = |layer: &str, inputs: usize, outputs: usize, gain: f64| {
            Linear::without_bias(parameters, &format!("{name}.{layer}"), inputs, outputs, gain)
        };
        // The outputs of a block are initially small, so that the block passes its input through.
        let quiet = 1.0 / (2.0 * blocks as f64);
        let hidden = EXPANSION * width;
        let query = weight("query", width, width, 1.0)?;
        let key = weight("key", width, width, 1.0)?;
        let value = weight("value", width, width, 1.0)?;
        Ok(Self {
            attend: query.joined(key).joined(value),
            mix: weight("mix", width, width, quiet)?,
            expand: weight("expand", width, hidden, 1.0)?,
            contract: weight("contract", hidden, width, quiet)?,
            dropouts: [Dropout::new(parameters, dropout)?, Dropout::new(parameters, dropout)?],
        })
    }

    /// `x` and the result are `samples*context x width`.
    fn forward(&self, x: &Tensor, samples: usize) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let attention = CausalAttention { context: rows / samples, heads: width / HEAD };
        let [first, second] = &self.dropouts;
        let attend =
            Residual { parts: &[&RmsNorm, &self.attend, &attention, &self.mix, first], shortcut: None };
        let perceive = Residual {
            parts: &[&RmsNorm, &self.expand, &SquaredRelu, &self.contract, second],
            shortcut: None,
        };
        chain(&self.attend.parameters, &[&attend, &perceive], x)
    }
}
