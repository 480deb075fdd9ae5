//! Models as sequences of layers. A [pipeline](unisono_strategies::pipeline) may cut them between any two layers.

use std::time::{Duration, Instant};

use candle_core::{Module, Result, Tensor, Var};
use unisono_data::Batch;

use super::{inputs, loss};
use crate::network::{Cut, Parameters, StageNetwork};
use unisono_strategies::pipeline::Stage;

/// The number of measurements of a layer's time.
const TIMES: usize = 3;

/// The forward pass of a layer. Its input is the result of the previous layer, or the model's inputs, for this many samples.
type Forward = Box<dyn Fn(&Tensor, usize) -> Result<Tensor> + Send>;

type Build = Box<dyn Fn(&Parameters) -> Result<Forward>>;

/// A layer of a model, or several that belong together. This is a description, from which the layer can be built.
pub(crate) struct Layer {
    /// The unique name in the model.
    pub(crate) name: String,
    pub(super) parameters: f64,
    /// The number of values that a forward pass computes for a sample and keeps until the backward pass.
    pub(super) activations: f64,
    build: Build,
}

impl Layer {
    pub(super) fn new<F: Fn(&Tensor, usize) -> Result<Tensor> + Send + 'static>(
        name: impl Into<String>,
        [parameters, activations]: [f64; 2],
        build: impl Fn(&Parameters) -> Result<F> + 'static,
    ) -> Self {
        let build = Box::new(move |parameters: &_| Ok(Box::new(build(parameters)?) as Forward));
        Self { name: name.into(), parameters, activations, build }
    }
}

pub(crate) struct Sequence(Vec<Forward>);

impl Sequence {
    pub(super) fn new(layers: &[Layer], parameters: &Parameters) -> Result<Self> {
        layers.iter().map(|layer| (layer.build)(parameters)).collect::<Result<_>>().map(Self)
    }

    /// Returns the result of the last layer, given the result of the layer before the first one for this many samples.
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

/// Builds consecutive layers of a model as a stage on these parameters, which must be empty. The stage ends with the loss if `is_last`. Fails if a
/// layer normalises over all ranks, or drops values.
pub(crate) fn stage(
    layers: &[Layer],
    is_last: bool,
    parameters: &Parameters,
) -> Result<impl Stage<Batch = Batch> + use<>> {
    let layers = Sequence::new(layers, parameters)?;
    StageNetwork::new(parameters, move |batch: &Batch, before: Option<&Tensor>| {
        let x = match before {
            Some(before) => before.clone(),
            None => inputs(batch)?,
        };
        let y = layers.forward(&x, batch.samples)?;
        if is_last { loss(&y, &batch.targets, None).map(Cut::Loss) } else { Ok(Cut::Activations(y)) }
    })
}

/// Measures the time of each layer for a batch, forward and backward: the minimum of several measurements. Only one layer is in memory at a time.
pub(crate) fn measure(layers: &[Layer], batch: &Batch, seed: u64) -> Result<Vec<Duration>> {
    let mut x = inputs(batch)?;
    let mut all = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let own = Sequence::new(std::slice::from_ref(layer), &Parameters::new(seed))?;
        let is_last = number + 1 == layers.len();
        let mut least = Duration::MAX;
        let mut next = None;
        for _ in 0..TIMES {
            // The inputs need no gradient.
            let before = if number > 0 { Var::from_tensor(&x)?.as_tensor().clone() } else { x.clone() };
            let began = Instant::now();
            let y = own.forward(&before, batch.samples)?;
            let sum = if is_last { loss(&y, &batch.targets, None)?.sum } else { y.sum_all()? };
            sum.backward()?;
            least = least.min(began.elapsed());
            next = Some(y.detach());
        }
        x = next.expect("it was timed");
        all.push(least);
    }
    Ok(all)
}
