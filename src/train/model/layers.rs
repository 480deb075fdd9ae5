//! Parameters with reproducible initial values, and the layer that every model is made of.

use candle_core::{Device, Result, Shape, Tensor, Var};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::NamedParameters;

/// The parameters of a model under construction.
///
/// Candle's own store draws initial values from a generator that cannot be seeded and lists
/// parameters in random order. Here each parameter has a random stream keyed by the seed and
/// its name, so that ranks agree on every value without telling each other.
pub(super) struct Parameters {
    seed: u64,
    variables: NamedParameters,
}

impl Parameters {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, variables: Vec::new() }
    }

    /// Adds a parameter, drawn evenly from both sides of 0 with a standard deviation of
    /// `deviation`.
    pub(super) fn add(
        &mut self,
        name: impl Into<String>,
        shape: impl Into<Shape>,
        deviation: f64,
    ) -> Result<Tensor> {
        let (name, shape) = (name.into(), shape.into());
        let mut rng = self.stream(&name);
        let bound = (deviation * 3_f64.sqrt()) as f32;
        let values = (0..shape.elem_count()).map(|_| (2.0 * rng.random::<f32>() - 1.0) * bound);
        let variable = Var::from_vec(values.collect(), shape, &Device::Cpu)?;
        let tensor = variable.as_tensor().clone();
        self.variables.push((name, variable));
        Ok(tensor)
    }

    fn stream(&self, name: &str) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        // FNV-1a: the standard library's hashes may change from release to release.
        rng.set_stream(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }));
        rng
    }

    /// All parameters, sorted by name.
    pub(super) fn sorted(mut self) -> NamedParameters {
        self.variables.sort_by(|(a, _), (b, _)| a.cmp(b));
        self.variables
    }
}

/// `x -> x weight + bias`.
///
/// The weight is stored as `inputs x outputs`, the order the product reads it in.
pub(super) struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    /// Adds the layer `name`, with weights of variance `gain / inputs`: 2 keeps the spread of
    /// activations through a ReLU (Kaiming), 1 without one.
    pub(super) fn new(
        parameters: &mut Parameters,
        name: &str,
        inputs: usize,
        outputs: usize,
        gain: f64,
    ) -> Result<Self> {
        let deviation = (gain / inputs as f64).sqrt();
        Ok(Self {
            weight: parameters.add(format!("{name}.weight"), (inputs, outputs), deviation)?,
            bias: parameters.add(format!("{name}.bias"), outputs, 0.0)?,
        })
    }

    /// `x` is `rows x inputs`, the result `rows x outputs`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.shift(&self.product(x)?)
    }

    /// The layer without its bias.
    pub(super) fn product(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.weight)
    }

    /// Adds the bias alone.
    pub(super) fn shift(&self, x: &Tensor) -> Result<Tensor> {
        x.broadcast_add(&self.bias)
    }
}
