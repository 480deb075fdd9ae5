//! Models as sequences of layers, between which a [pipeline](unisono_strategies::pipeline) may cut them.

use std::fmt;

use candle_core::{Module, Result, Tensor};

use crate::network::Parameters;

/// The forward pass of a layer: from the result of the previous layer, or from the inputs, of this many
/// samples.
pub(super) type Forward = Box<dyn Fn(&Tensor, usize) -> Result<Tensor> + Send>;

/// Adds a layer's parameters.
type Build = Box<dyn Fn(&Parameters) -> Result<Forward>>;

/// A layer of a model, or several that belong together. It is described, and can be built.
pub struct Layer {
    name: String,
    build: Build,
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layer").field(&self.name).finish()
    }
}

impl Layer {
    /// Returns a layer with this name, which `build` builds.
    pub(super) fn new<F: Fn(&Tensor, usize) -> Result<Tensor> + Send + 'static>(
        name: impl Into<String>,
        build: impl Fn(&Parameters) -> Result<F> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            build: Box::new(move |parameters| Ok(Box::new(build(parameters)?) as Forward)),
        }
    }

    /// Returns its name, which no other layer of the model has.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Consecutive layers.
pub(super) struct Sequence(Vec<Forward>);

impl Sequence {
    /// Adds the layers' parameters, in order.
    pub(super) fn new(layers: &[Layer], parameters: &Parameters) -> Result<Self> {
        layers.iter().map(|layer| (layer.build)(parameters)).collect::<Result<_>>().map(Self)
    }

    /// Returns the result of the last layer, from what the layer before the first has computed of this many
    /// samples.
    pub(super) fn forward(&self, x: &Tensor, samples: usize) -> Result<Tensor> {
        let (first, rest) = self.0.split_first().expect("a model has a layer");
        rest.iter().try_fold(first(x, samples)?, |x, layer| layer(&x, samples))
    }
}

impl Module for Sequence {
    fn forward(&self, inputs: &Tensor) -> Result<Tensor> {
        self.forward(inputs, inputs.dim(0)?)
    }
}
