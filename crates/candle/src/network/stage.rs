//! A candle model's layers as a stage of a pipeline.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use candle_core::{Device, Tensor, Var, bail};

use super::parameters::{EVALUATION, GRADIENTS, Parameters};
use super::{Arrays, Loss, loss};
use unisono_strategies::pipeline::{Activations, Stage, StageOutput};
use unisono_train::metrics::VisitOutputs;
use unisono_train::{Gradients, Parameter, ReplicaError};

/// The result of the layers of a stage.
#[derive(Debug)]
pub enum Cut {
    /// The input of the next stage.
    Activations(Tensor),
    /// The loss, from the last stage.
    Loss(Loss),
}

/// Layers of a candle model as a [`Stage`] on the CPU: their parameters, and a closure that computes the layers from the samples of a micro-batch and
/// from the output of the previous stage. The first stage has no such output.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use unisono_steps::pipeline::PipelineSchedule;
/// use unisono_candle::{Cut, Linear, Loss, Parameters, StageNetwork};
/// use unisono_strategies::pipeline::{Grid, Pipeline};
/// use unisono_train::{BucketSettings, Mirror, OptimizerSettings, Sgd, Share, TrainError};
///
/// // Two stages, times two replicas of each.
/// let losses = unisono::threads(4, |mut comm| -> Result<f64, TrainError> {
///     let Grid { pipeline, mut replicas } = Grid::of(&mut comm, 2)?;
///     let parameters = Parameters::new(7);
///     let is_first = pipeline.rank() == 0;
///     let (name, inputs, outputs) = if is_first { ("hidden", 4, 8) } else { ("output", 8, 3) };
///     let layer = Linear::new(&parameters, name, inputs, outputs, 1.0).unwrap();
///     let stage = StageNetwork::new(&parameters, move |(inputs, targets): &(Tensor, Tensor), before| {
///         let outputs = layer.forward(before.unwrap_or(inputs))?;
///         if is_first {
///             return Ok(Cut::Activations(outputs));
///         }
///         Loss::cross_entropy(&outputs, targets).map(Cut::Loss)
///     });
///     let pipeline = Pipeline::new(pipeline, PipelineSchedule::OneForwardOneBackward, vec![stage.unwrap()])?;
///
///     let optimizer = OptimizerSettings::new(Sgd::default());
///     let mut mirror = Mirror::new(&mut replicas, pipeline, optimizer, &BucketSettings::default(), None)?;
///     let inputs = Tensor::ones((2, 4), DType::F32, &Device::Cpu).unwrap();
///     let targets = Tensor::new(&[0_u32, 2], &Device::Cpu).unwrap();
///     // Four micro-batches, here all equal. Every stage gets them: the first reads the inputs, the last the targets.
///     let share = [Some(vec![(inputs, targets); 4])];
///     let mut loss = f64::NAN;
///     for _ in 0..5 {
///         loss = mirror.step(&mut replicas, Share::of(&share), 0.1, |_| true)?.sums.tally.mean_loss();
///     }
///     Ok(loss)
/// });
/// let losses: Vec<f64> = losses.into_iter().collect::<Result<_, _>>()?;
/// assert!(losses.iter().all(|&loss| loss == losses[0] && loss < 1.0), "{losses:?}");
/// # Ok::<(), TrainError>(())
/// ```
pub struct StageNetwork<B, F> {
    arrays: Arrays,
    forward: F,
    /// The inputs of backward passes, by the index of the micro-batch.
    kept: HashMap<usize, Kept>,
    batch: PhantomData<fn(&B)>,
}

struct Kept {
    before: Option<Var>,
    output: Cut,
}

impl<B, F> fmt::Debug for StageNetwork<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageNetwork").field("parameters", &self.arrays.described).finish_non_exhaustive()
    }
}

impl<B, F: Fn(&B, Option<&Tensor>) -> candle_core::Result<Cut>> StageNetwork<B, F> {
    /// Returns layers that were built from these parameters. All of them must exist by now.
    ///
    /// # Errors
    /// If one of them is a [`SyncBatchNorm`](super::SyncBatchNorm) or a [`Dropout`](super::Dropout), which do not support the micro-batches of a
    /// pipeline.
    pub fn new(parameters: &Parameters, forward: F) -> candle_core::Result<Self> {
        let passes = parameters.passes();
        if passes.synchronizes() || passes.steps.is_some() {
            bail!(
                "a stage of a pipeline has no SyncBatchNorm and no Dropout: use a Network, or other layers"
            );
        }
        Ok(Self { arrays: Arrays::of(parameters), forward, kept: HashMap::new(), batch: PhantomData })
    }

    fn compute(&self, batch: &B, before: Option<&Activations>) -> candle_core::Result<(Kept, StageOutput)> {
        let before = before.map(|before| Var::from_tensor(&tensor(before)?)).transpose()?;
        let output = (self.forward)(batch, before.as_deref())?;
        let told = match &output {
            Cut::Activations(activations) => StageOutput::Activations(activations_of(activations)?),
            Cut::Loss(loss) => StageOutput::Loss(loss.tally),
        };
        Ok((Kept { before, output }, told))
    }
}

impl<B: Send + 'static, F: Fn(&B, Option<&Tensor>) -> candle_core::Result<Cut>> Stage for StageNetwork<B, F> {
    type Batch = B;

    fn parameters(&self) -> &[Parameter] {
        &self.arrays.described
    }

    fn forward(
        &mut self,
        micro_batch: usize,
        batch: &B,
        before: Option<&Activations>,
    ) -> Result<StageOutput, ReplicaError> {
        let (kept, told) = self.compute(batch, before)?;
        self.kept.insert(micro_batch, kept);
        Ok(told)
    }

    fn backward(
        &mut self,
        micro_batch: usize,
        gradient: Option<&Activations>,
        gradients: &mut dyn Gradients,
    ) -> Result<Option<Activations>, ReplicaError> {
        let Some(Kept { before, output }) = self.kept.remove(&micro_batch) else {
            return Err(format!("micro-batch {micro_batch} goes back before it went forward").into());
        };
        // The gradient of this sum is the given one.
        let sum = match (output, gradient) {
            (Cut::Loss(loss), None) => loss.sum,
            (Cut::Activations(activations), Some(gradient)) => {
                (activations * tensor(gradient)?)?.sum_all()?
            }
            (Cut::Loss(_), Some(_)) => return Err("a loss has no gradient from another stage".into()),
            (Cut::Activations(_), None) => {
                return Err("activations need a gradient from the next stage".into());
            }
        };
        self.arrays.check_complete()?;
        let found = GRADIENTS.set(gradients, || sum.backward())?;
        let Some(before) = before else { return Ok(None) };
        // Without a gradient, the result does not depend on the inputs.
        let gradient =
            found.get(&before).map_or_else(|| before.zeros_like(), |gradient| Ok(gradient.clone()))?;
        Ok(Some(activations_of(&gradient)?))
    }

    fn evaluate(
        &mut self,
        batch: &B,
        before: Option<&Activations>,
        visit: Option<VisitOutputs<'_>>,
    ) -> Result<StageOutput, ReplicaError> {
        Ok(EVALUATION.set(&(), || loss::showing(visit, || self.compute(batch, before)))?.1)
    }

    fn with_values(&mut self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        self.arrays.with_values(index, visit)
    }
}

fn tensor(activations: &Activations) -> candle_core::Result<Tensor> {
    Tensor::from_slice(&activations.values, &activations.shape[..], &Device::Cpu)
}

fn activations_of(tensor: &Tensor) -> candle_core::Result<Activations> {
    Ok(Activations { shape: tensor.dims().to_vec(), values: tensor.flatten_all()?.to_vec1()? })
}
