//! A small transformer that predicts the next character (GPT: causal, pre-norm).
//!
//! Its layers have no bias: they learn as well without.

use candle_core::{IndexOp, Result, Tensor};

use super::Size;
use super::layers::Layer;
use super::rows::{CausalSoftmax, RmsNorm, SquaredRelu};
use crate::network::{Dropout, Linear, Parameters, apply};

const WIDTH: usize = 128;
const HEADS: usize = 4;
/// The width of a head.
const HEAD: usize = WIDTH / HEADS;
const BLOCKS: usize = 4;
/// The width of the hidden layer between two linear ones.
const HIDDEN: usize = 4 * WIDTH;
/// Small, so that at first all characters are about equally likely.
const OUTPUT_GAIN: f64 = 0.05;

/// The size of the model.
pub(super) fn size(context: f64, vocabulary: f64) -> Size {
    let (width, hidden) = (WIDTH as f64, HIDDEN as f64);
    let rows = context * width;
    let mut size = Size {
        parameters: (vocabulary + context) * width,
        inputs: context,
        activations: 3.0 * rows,
        with_backward: 1.7,
    };
    for _ in 0..BLOCKS {
        (0..4).for_each(|_| size.layer(context, width, width, false));
        size.layer(context, width, hidden, false);
        size.layer(context, hidden, width, false);
        // The separated heads, norms, sums and squares; and the attention of each head, before and after its softmax.
        size.activations += 9.0 * rows + context * hidden + 2.0 * HEADS as f64 * context * context;
    }
    size.layer(context, width, vocabulary, false);
    size.activations += rows + context * vocabulary;
    size
}

/// The layers: the characters as vectors, the blocks, and the output.
pub(super) fn layers(context: usize, vocabulary: usize, dropout: f64) -> Vec<Layer> {
    let block = |number: usize| {
        let name = format!("block{number}");
        Layer::new(name.clone(), move |parameters| {
            let block = Block::new(parameters, &name, dropout)?;
            Ok(move |x: &Tensor, samples| block.forward(x, samples))
        })
    };
    let output = Layer::new("output", move |parameters| {
        let linear = Linear::without_bias(parameters, "output", WIDTH, vocabulary, OUTPUT_GAIN)?;
        Ok(move |x: &Tensor, _| linear.forward(&apply(RmsNorm, x)?))
    });
    [embedding(context, vocabulary)].into_iter().chain((0..BLOCKS).map(block)).chain([output]).collect()
}

/// The vector of each character, `vocabulary x WIDTH`, and of each position, `context x WIDTH`; their sums are
/// `samples*context x WIDTH`.
fn embedding(context: usize, vocabulary: usize) -> Layer {
    Layer::new("embedding", move |parameters| {
        let characters = parameters.add("characters", (vocabulary, WIDTH), 0.3)?;
        let positions = parameters.add("positions", (context, WIDTH), 0.1)?;
        Ok(move |inputs: &Tensor, _| {
            let (samples, context) = inputs.dims2()?;
            characters
                .embedding(&inputs.flatten_all()?)?
                .reshape((samples, context, WIDTH))?
                .broadcast_add(&positions.i(..context)?)?
                .reshape((samples * context, WIDTH))
        })
    })
}

/// Attention, then a perceptron, each added to its input.
struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    mix: Linear,
    expand: Linear,
    contract: Linear,
    /// Of what each half adds to its input.
    dropouts: [Dropout; 2],
}

impl Block {
    fn new(parameters: &Parameters, name: &str, dropout: f64) -> Result<Self> {
        let weight = |layer: &str, inputs: usize, outputs: usize, gain: f64| {
            Linear::without_bias(parameters, &format!("{name}.{layer}"), inputs, outputs, gain)
        };
        // The outputs of a block start small, so that at first it passes its input through.
        let quiet = 1.0 / (2.0 * BLOCKS as f64);
        Ok(Self {
            query: weight("query", WIDTH, WIDTH, 1.0)?,
            key: weight("key", WIDTH, WIDTH, 1.0)?,
            value: weight("value", WIDTH, WIDTH, 1.0)?,
            mix: weight("mix", WIDTH, WIDTH, quiet)?,
            expand: weight("expand", WIDTH, HIDDEN, 1.0)?,
            contract: weight("contract", HIDDEN, WIDTH, quiet)?,
            dropouts: [Dropout::new(parameters, dropout)?, Dropout::new(parameters, dropout)?],
        })
    }

    /// `x` and the result are `samples*context x WIDTH`.
    fn forward(&self, x: &Tensor, samples: usize) -> Result<Tensor> {
        let [first, second] = &self.dropouts;
        let x = (x + first.forward(&self.attend(&apply(RmsNorm, x)?, samples)?)?)?;
        let hidden = apply(SquaredRelu, &self.expand.forward(&apply(RmsNorm, &x)?)?)?;
        &x + second.forward(&self.contract.forward(&hidden)?)?
    }

    /// The attention of each token to those up to it; shapes as in [`forward`](Self::forward).
    fn attend(&self, x: &Tensor, samples: usize) -> Result<Tensor> {
        // samples*context x WIDTH -> samples x HEADS x context x HEAD
        let heads = |x: Tensor| x.reshape((samples, (), HEADS, HEAD))?.transpose(1, 2)?.contiguous();
        let query = heads(self.query.forward(x)?)?;
        let key = heads(self.key.forward(x)?)?;
        let value = heads(self.value.forward(x)?)?;

        let scale = (HEAD as f32).sqrt().recip();
        let attention = apply(CausalSoftmax { scale }, &query.matmul(&key.t()?)?)?;
        let mixed = attention.matmul(&value)?.transpose(1, 2)?.reshape(((), WIDTH))?;
        self.mix.forward(&mixed)
    }
}
