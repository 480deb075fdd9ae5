//! GPT-2, with the names and the layout of Hugging Face's weights.
//!
//! **Source**: Radford et al., "Language models are unsupervised multitask learners", 2019, implemented as `GPT2LMHeadModel` of `transformers`.

use candle_core::{IndexOp, Result, Tensor, bail};
use candle_nn::{Init, LayerNorm, Module};
use serde::Deserialize;

use crate::network::{CausalAttention, Linear, Parameters, Part, chain};

/// The standard deviation of initial weights.
const DEVIATION: f64 = 0.02;
const EPSILON: f64 = 1e-5;

/// The sizes of a [`Gpt2`]. It deserializes from Hugging Face's `config.json`, unless that file describes a variant of GPT-2, such as another
/// activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Entries")]
pub struct Gpt2Config {
    /// The number of distinct tokens.
    pub vocabulary: usize,
    /// The maximum number of tokens of a sample.
    pub context: usize,
    /// The number of values that represent a token.
    pub width: usize,
    /// The number of heads of each attention, a divisor of the width.
    pub heads: usize,
    /// The number of blocks, each an attention and a perceptron.
    pub blocks: usize,
}

/// The entries of `config.json` that determine the logits.
#[derive(Deserialize)]
struct Entries {
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_head: usize,
    n_layer: usize,
    n_inner: Option<usize>,
    activation_function: Option<String>,
    layer_norm_epsilon: Option<f64>,
    scale_attn_weights: Option<bool>,
    scale_attn_by_inverse_layer_idx: Option<bool>,
    tie_word_embeddings: Option<bool>,
}

impl TryFrom<Entries> for Gpt2Config {
    type Error = String;

    fn try_from(entries: Entries) -> std::result::Result<Self, String> {
        let Entries { vocab_size, n_positions, n_embd, n_head, n_layer, .. } = entries;
        // Three names of one function.
        let activations = ["gelu_new", "gelu_fast", "gelu_pytorch_tanh"];
        let activation = entries.activation_function.as_deref().unwrap_or(activations[0]);
        let differences = [
            ("n_inner", entries.n_inner.is_some_and(|inner| Some(inner) != n_embd.checked_mul(4))),
            ("activation_function", !activations.contains(&activation)),
            ("layer_norm_epsilon", entries.layer_norm_epsilon.is_some_and(|epsilon| epsilon != EPSILON)),
            ("scale_attn_weights", entries.scale_attn_weights == Some(false)),
            ("scale_attn_by_inverse_layer_idx", entries.scale_attn_by_inverse_layer_idx == Some(true)),
            ("tie_word_embeddings", entries.tie_word_embeddings == Some(false)),
        ];
        if let Some((entry, _)) = differences.iter().find(|(_, differs)| *differs) {
            return Err(format!("`{entry}` differs from GPT-2's: expected a model without this variation"));
        }
        Ok(Self {
            vocabulary: vocab_size,
            context: n_positions,
            width: n_embd,
            heads: n_head,
            blocks: n_layer,
        })
    }
}

/// GPT-2: computes the logits of each next token of a text. Its parameters have the names and the shapes of Hugging Face's published weights
/// (`wte.weight`, `h.0.attn.c_attn.weight`, …), so [`Parameters::load`] reads them. There is no dropout.
///
/// Parameters that are not loaded are uniform around 0, with standard deviation 0.02.
#[derive(Debug)]
pub struct Gpt2 {
    tokens: Tensor,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: Norm,
}

impl Gpt2 {
    /// Adds the parameters of a model of these sizes.
    ///
    /// # Errors
    /// If the heads do not divide the width, or parameters of these names exist.
    pub fn new(parameters: &Parameters, config: &Gpt2Config) -> Result<Self> {
        let &Gpt2Config { vocabulary, context, width, heads, blocks } = config;
        if heads == 0 || !width.is_multiple_of(heads) {
            bail!("a width of {width} cannot be divided among {heads} heads: expected a multiple");
        }
        let block = |number| Block::new(parameters, &format!("h.{number}"), width, heads);
        Ok(Self {
            tokens: parameters.add("wte.weight", (vocabulary, width), DEVIATION)?,
            positions: parameters.add("wpe.weight", (context, width), DEVIATION)?,
            blocks: (0..blocks).map(block).collect::<Result<_>>()?,
            norm: Norm::new(parameters, "ln_f", width)?,
        })
    }
}

impl Module for Gpt2 {
    /// Computes the logits of `inputs`, `samples x tokens` of `u32`. The result has a row for each token.
    fn forward(&self, inputs: &Tensor) -> Result<Tensor> {
        let (samples, length) = inputs.dims2()?;
        let (context, width) = self.positions.dims2()?;
        if samples * length == 0 {
            bail!("there are {samples} samples of {length} tokens: expected at least one of each");
        }
        if length > context {
            bail!("a sample has {length} tokens: expected at most {context}, the context of the model");
        }
        let x = self.tokens.embedding(&inputs.flatten_all()?)?.reshape((samples, length, width))?;
        let x = x.broadcast_add(&self.positions.i(..length)?)?.reshape((samples * length, width))?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.forward(&x, samples))?;
        // The token embedding is also the output layer.
        self.norm.forward(&x)?.matmul(&self.tokens.t()?)
    }
}

/// Attention, then a perceptron, each added to its input.
#[derive(Debug)]
struct Block {
    heads: usize,
    norms: [Norm; 2],
    /// Queries, keys and values, side by side.
    attend: Linear,
    mix: Linear,
    expand: Linear,
    contract: Linear,
}

impl Block {
    fn new(parameters: &Parameters, name: &str, width: usize, heads: usize) -> Result<Self> {
        let linear = |layer: &str, inputs: usize, outputs: usize| {
            let gain = DEVIATION.powi(2) * inputs as f64;
            Linear::new(parameters, &format!("{name}.{layer}"), inputs, outputs, gain)
        };
        let norm = |layer: &str| Norm::new(parameters, &format!("{name}.{layer}"), width);
        Ok(Self {
            heads,
            norms: [norm("ln_1")?, norm("ln_2")?],
            attend: linear("attn.c_attn", width, 3 * width)?,
            mix: linear("attn.c_proj", width, width)?,
            expand: linear("mlp.c_fc", width, 4 * width)?,
            contract: linear("mlp.c_proj", 4 * width, width)?,
        })
    }

    /// `x` and the result are `samples*tokens x width`.
    fn forward(&self, x: &Tensor, samples: usize) -> Result<Tensor> {
        let attention = CausalAttention { context: x.dim(0)? / samples, heads: self.heads };
        let parts: [&dyn Part; 3] = [&self.attend, &attention, &self.mix];
        let x = (x + chain(&self.attend.parameters, &parts, &self.norms[0].forward(x)?)?)?;
        let hidden = self.expand.forward(&self.norms[1].forward(&x)?)?.gelu()?;
        x + self.contract.forward(&hidden)?
    }
}

/// A layer norm whose bias is added separately: candle's layer norm with a bias has no derivative.
#[derive(Debug)]
struct Norm {
    scale: LayerNorm,
    bias: Tensor,
}

impl Norm {
    fn new(parameters: &Parameters, name: &str, width: usize) -> Result<Self> {
        let vars = parameters.var_builder().pp(name);
        let weight = vars.get_with_hints(width, "weight", Init::Const(1.0))?;
        let bias = vars.get_with_hints(width, "bias", Init::Const(0.0))?;
        Ok(Self { scale: LayerNorm::new_no_bias(weight, EPSILON), bias })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.scale.forward(x)?.broadcast_add(&self.bias)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use candle_core::Device;

    use super::*;
    use crate::network::tests::gradients_of;
    use crate::network::{Loss, Network};
    use unisono_train::Replica as _;

    /// The output of `tests/reference/gpt2.py`.
    #[derive(Deserialize)]
    struct Reference {
        logits: Vec<Vec<f32>>,
        loss: f64,
        derivatives: BTreeMap<String, f64>,
    }

    /// Returns the integers of the function of the same name in `tests/reference/gpt2.py`.
    fn levels(count: usize, seed: usize, modulus: usize) -> impl Iterator<Item = f32> {
        (0..count).map(move |i| ((i * i * 3 + i * 37 + seed * 11) % 101 % modulus) as f32)
    }

    fn seed(name: &str) -> usize {
        name.bytes().map(usize::from).sum()
    }

    #[test]
    fn logits_and_gradients_match_the_reference() {
        let reference: Reference =
            serde_json::from_str(include_str!("../../tests/reference/gpt2.json")).unwrap();
        let config =
            r#"{"vocab_size": 11, "n_positions": 6, "n_embd": 8, "n_head": 2, "n_layer": 2, "n_ctx": 6}"#;
        let config = serde_json::from_str(config).unwrap();
        let inputs = Tensor::new(&[[3_u32, 1, 4, 1, 5], [9, 2, 6, 10, 0]], &Device::Cpu).unwrap();
        let targets = Tensor::new(&[[1_u32, 4, 1, 5, 9], [2, 6, 10, 0, 7]], &Device::Cpu).unwrap();
        for parameters in [Parameters::new(0), Parameters::composed(0)] {
            let model = Gpt2::new(&parameters, &config).unwrap();
            let mut replica = Network::new(&parameters, |inputs: &Tensor| {
                let logits = model.forward(inputs)?;
                for (row, expected) in logits.to_vec2::<f32>()?.iter().zip(&reference.logits) {
                    let is_close =
                        row.iter().zip(expected).all(|(found, logit)| (found - logit).abs() < 1e-4);
                    assert!(is_close, "{row:?}: expected {expected:?}");
                }
                Loss::cross_entropy(&logits, &targets)
            });
            let names: Vec<_> = replica.parameters().iter().map(|parameter| parameter.name.clone()).collect();
            for (index, name) in names.iter().enumerate() {
                let middle = if name.contains("ln_") && name.ends_with("weight") { 1.0 } else { 0.0 };
                let fill = |values: &mut [f32]| {
                    let levels = levels(values.len(), seed(name), 7);
                    values.iter_mut().zip(levels).for_each(|(x, level)| *x = middle + (level - 3.0) / 8.0);
                };
                replica.with_values(index, &mut { fill }).unwrap();
            }
            let (tally, gradients) = gradients_of(&mut replica, &inputs);
            assert!(
                (tally.loss - reference.loss).abs() < 1e-3,
                "{}: expected {}",
                tally.loss,
                reference.loss
            );
            assert_eq!((tally.targets, gradients.len()), (10.0, reference.derivatives.len()));
            for (index, gradient) in gradients {
                let (name, expected) = (&names[index], reference.derivatives[&names[index]]);
                let direction = levels(gradient.len(), seed(name) + 1, 5).map(|level| level - 2.0);
                let found: f64 = gradient.iter().zip(direction).map(|(g, d)| f64::from(g * d)).sum();
                assert!((found - expected).abs() < 1e-3, "{name}: {found}, expected {expected}");
            }
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        let published = |more: &str| {
            let entries = r#""vocab_size": 3, "n_positions": 2, "n_embd": 6, "n_head": 4, "n_layer": 1"#;
            serde_json::from_str::<Gpt2Config>(&format!("{{{entries}, {more}}}"))
                .map_err(|why| why.to_string())
        };
        let config = published(r#""n_inner": null, "activation_function": "gelu_new""#).unwrap();
        assert_eq!(config, Gpt2Config { vocabulary: 3, context: 2, width: 6, heads: 4, blocks: 1 });
        let refused = published(r#""activation_function": "relu""#).unwrap_err();
        assert!(refused.starts_with("`activation_function` differs from GPT-2's"), "{refused}");
        let message = |error: candle_core::Error| error.to_string();
        let refused = Gpt2::new(&Parameters::new(0), &config).map_err(message).unwrap_err();
        assert!(refused.starts_with("a width of 6 cannot be divided among 4 heads"), "{refused}");
        let model = Gpt2::new(&Parameters::new(0), &Gpt2Config { heads: 2, ..config }).unwrap();
        let tokens = Tensor::zeros((1, 3), candle_core::DType::U32, &Device::Cpu).unwrap();
        let refused = model.forward(&tokens).map_err(message).unwrap_err();
        assert!(refused.starts_with("a sample has 3 tokens: expected at most 2"), "{refused}");
        for shape in [(0, 2), (1, 0)] {
            let none = Tensor::zeros(shape, candle_core::DType::U32, &Device::Cpu).unwrap();
            let refused = model.forward(&none).map_err(message).unwrap_err();
            assert!(refused.contains("tokens: expected at least one of each"), "{refused}");
        }
    }
}
