//! [candle](candle_core) models as replicas of the trainer.
//!
//! Model code stays unchanged. It requests its variables from [`Parameters::var_builder`], as any `candle_nn` model does, and receives tensors whose
//! gradients are reported as soon as the backward pass has computed them.

use std::fmt;

use candle_core::Tensor;

#[cfg(feature = "cuda")]
use crate::gpu::Gpu;
use crate::values::{self, overwrite};
use unisono::Communicator;
use unisono_strategies::central_storage;
#[cfg(feature = "cuda")]
use unisono_train::agree;
use unisono_train::internals::Backend;
use unisono_train::metrics::VisitOutputs;
use unisono_train::{
    BucketSettings, Gradients, LossSums, OptimizerSettings, Parameter, Replica, ReplicaError, TrainError,
};

mod attention;
mod blocks;
mod buffer;
mod chain;
mod channels;
mod convolution;
mod dropout;
mod linear;
mod loss;
mod norm;
mod operation;
mod parameters;
mod passes;
mod pretrained;
#[allow(unsafe_code, reason = "the matrix product takes addresses")]
mod product;
mod rows;
#[allow(unsafe_code, reason = "values lie in memory that ranks share")]
mod shared;
mod stage;
mod statistics;
mod variables;

pub(crate) use attention::CausalAttention;
pub use chain::apply;
pub(crate) use chain::{Residual, chain};
pub(crate) use convolution::{Convolution, Patches, image_dims};
pub use dropout::Dropout;
pub(crate) use dropout::STEPS as DROPOUT_STEPS;
pub use linear::Linear;
pub use loss::{Loss, cross_entropy};
pub use norm::SyncBatchNorm;
pub use operation::Function;
pub(crate) use operation::Part;
pub use parameters::Parameters;
pub(crate) use rows::{Relu, RmsNorm, SquaredRelu};
pub use stage::{Cut, StageNetwork};

use parameters::{EVALUATION, GRADIENTS, VALUES};

/// A candle model as a [`Replica`]: its parameters, and a closure that computes the loss of a batch.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_nn::Module;
/// use unisono_candle::{Loss, Network, Parameters};
/// use unisono_train::{BucketSettings, Mirror, OptimizerSettings, Sgd, Share};
///
/// let losses = unisono::threads(2, |mut comm| -> Result<f64, unisono_train::TrainError> {
///     // An ordinary candle model.
///     let parameters = Parameters::new(7);
///     let layer = candle_nn::linear(4, 3, parameters.var_builder()).unwrap();
///     let replica = Network::new(&parameters, move |(inputs, targets): &(Tensor, Tensor)| {
///         Loss::cross_entropy(&layer.forward(inputs)?, targets)
///     });
///
///     let optimizer = OptimizerSettings::new(Sgd::default());
///     let mut mirror = Mirror::new(&mut comm, replica, optimizer, &BucketSettings::default(), None)?;
///     let inputs = Tensor::ones((2, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
///     let targets = Tensor::new(&[0_u32, 2], &Device::Cpu).unwrap();
///     let share = [Some((inputs, targets))];
///     let mut loss = f64::NAN;
///     for _ in 0..5 {
///         let share = Share::of(&share);
///         loss = mirror.step(&mut comm, share, 0.1, |_| true)?.sums.tally.mean_loss();
///     }
///     Ok(loss)
/// });
/// let losses: Vec<f64> = losses.into_iter().collect::<Result<_, _>>().unwrap();
/// assert!(losses[0] == losses[1] && losses[0] < 1.2);
/// ```
pub struct Network<B, F> {
    arrays: Arrays,
    /// The indices of parameters whose values no layer waits for.
    without_layer: Vec<usize>,
    loss: F,
    batch: std::marker::PhantomData<fn(&B)>,
}

impl<B, F> fmt::Debug for Network<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("parameters", &self.arrays.described).finish_non_exhaustive()
    }
}

impl<B: Send + 'static, F: Fn(&B) -> candle_core::Result<Loss>> Network<B, F> {
    /// Returns a model that was built from these parameters. All of them must exist by now.
    pub fn new(parameters: &Parameters, loss: F) -> Self {
        let all = parameters.all();
        let without_layer = (0..all.len()).filter(|&index| !all[index].is_of_layer).collect();
        Self { arrays: Arrays::of(parameters), without_layer, loss, batch: std::marker::PhantomData }
    }

    fn wait_for_param(
        &self,
        gradients: &mut dyn Gradients,
        indices: impl IntoIterator<Item = usize>,
    ) -> candle_core::Result<()> {
        let mut indices = indices.into_iter().filter(|_| self.brings_values());
        indices.try_for_each(|index| parameters::bring_from(gradients, index, &self.arrays.tensors[index]))
    }

    fn run(&mut self, batch: &B, gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        self.arrays.parameters.passes().begin();
        self.wait_for_param(gradients, self.without_layer.iter().copied())?;
        let Loss { sum, tally } = VALUES.set(gradients, || (self.loss)(batch))?;
        self.arrays.check_complete()?;
        // The remaining parameters belong to layers that this batch did not reach.
        self.wait_for_param(gradients, 0..self.arrays.tensors.len())?;
        gradients.record_loss(tally);
        GRADIENTS.set(gradients, || sum.backward())?;
        Ok(self.arrays.parameters.passes().end()?)
    }
}

impl<B: Send + 'static, F: Fn(&B) -> candle_core::Result<Loss>> Replica for Network<B, F> {
    type Batch = B;

    fn parameters(&self) -> &[Parameter] {
        &self.arrays.described
    }

    fn pass(&mut self, batch: &B, gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        let ended = self.run(batch, gradients);
        if let Err(error) = &ended {
            self.arrays.parameters.passes().fail(&error.to_string());
        }
        ended
    }

    fn synchronizes(&self) -> bool {
        self.arrays.parameters.passes().synchronizes()
    }

    fn connect(&mut self, comm: &mut Communicator) -> Result<(), ReplicaError> {
        Ok(self.arrays.parameters.passes().connect(comm)?)
    }

    fn begin_step(&mut self, first: u64, passes: usize) -> Result<usize, ReplicaError> {
        Ok(self.arrays.parameters.passes().begin_step(first, passes)?)
    }

    fn pass_without_samples(&mut self) -> Result<(), ReplicaError> {
        Ok(self.arrays.parameters.passes().without_samples()?)
    }

    fn evaluate(&mut self, batch: &B, visit: Option<VisitOutputs<'_>>) -> Result<LossSums, ReplicaError> {
        Ok(EVALUATION.set(&(), || loss::showing(visit, || (self.loss)(batch)))?.tally)
    }

    fn with_values(&mut self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        self.arrays.with_values(index, visit)
    }

    fn shares_values(&self) -> bool {
        self.arrays.parameters.sharing.is_some()
    }

    fn brings_values(&self) -> bool {
        // Ranks that wait for each other in the forward pass must not also wait for parameter updates: they could deadlock.
        !self.shares_values()
            && !self.synchronizes()
            && self.arrays.tensors.iter().all(|tensor| tensor.device().is_cpu())
    }

    fn device(
        &self,
        comm: &mut Communicator,
        optimizer: &OptimizerSettings,
        buckets: &BucketSettings,
    ) -> Result<Option<Box<dyn Backend>>, TrainError> {
        if self.shares_values() {
            return central_storage(comm, self.parameters(), optimizer, buckets).map(Some);
        }
        #[cfg(feature = "cuda")]
        {
            let Arrays { described, tensors, .. } = &self.arrays;
            let is_there = tensors.first().is_some_and(|tensor| tensor.device().is_cuda());
            let gpu = is_there.then(|| Gpu::new(comm, (described, tensors), optimizer, buckets)).transpose();
            Ok(agree(comm, gpu)?.map(|gpu| Box::new(gpu) as Box<dyn Backend>))
        }
        #[cfg(not(feature = "cuda"))]
        Ok(None)
    }
}

#[derive(Debug)]
struct Arrays {
    parameters: Parameters,
    described: Vec<Parameter>,
    tensors: Vec<Tensor>,
}

impl Arrays {
    fn of(parameters: &Parameters) -> Self {
        let all = parameters.all().into_iter();
        let (described, tensors) = all.map(|array| (array.parameter, array.tensor)).unzip();
        Self { parameters: parameters.clone(), described, tensors }
    }

    /// Rejects parameters that the model has added since. No gradient of theirs would be reduced.
    fn check_complete(&self) -> candle_core::Result<()> {
        match self.parameters.lock().get(self.described.len()) {
            Some(added) => candle_core::bail!(
                "parameter {} was added too late: build the whole model before its Network or StageNetwork",
                added.parameter.name
            ),
            None => Ok(()),
        }
    }

    fn with_values(&self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        let tensor = &self.tensors[index];
        if tensor.device().is_cpu() {
            return Ok(values::visit(tensor, visit)?);
        }
        let mut values = tensor.flatten_all()?.to_vec1()?;
        visit(&mut values);
        Ok(overwrite(tensor, &Tensor::from_vec(values, tensor.shape(), tensor.device())?)?)
    }
}

#[cfg(test)]
pub(crate) mod tests;
