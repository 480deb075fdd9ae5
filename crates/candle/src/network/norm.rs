//! Batch normalisation over the samples of all ranks.
//!
//! **Source**: Ioffe and Szegedy, "Batch normalization: accelerating deep network training by reducing internal covariate shift", ICML 2015,
//! algorithms 1 and 2, with the constants and rules of `torch.nn.SyncBatchNorm`.

use std::sync::{Arc, OnceLock};

use candle_core::{Result, Tensor, bail};

use super::chain::chain;
use super::channels::{Affine, Moved, differentiate, normalize, products, repeated};
use super::operation::{Operation, Part};
use super::parameters::{Parameters, Weight, is_training};
use super::passes::Direction;
use super::statistics::{Moments, Statistics, narrow};
use crate::values::{Backward, with_all, with_values};

/// Batch normalisation by the mean and variance over the samples of *all* ranks in a pass, as `torch.nn.SyncBatchNorm`. The result does not depend on
/// how the batch is divided among ranks. Ranks may have different numbers of samples, or none.
///
/// A training pass ([`Replica::pass`](unisono_train::Replica::pass) of a [`Network`](super::Network)) makes an all-reduce in the forward pass and one
/// in the backward pass, and updates the running statistics. All other passes use the running statistics, and do not communicate. These are buffers
/// of the model, called `NAME.running_mean` and `NAME.running_var`. They are identical on all ranks, and are saved in checkpoints. If a step has
/// several passes, each has its own statistics, over the passes with this number on all ranks.
///
/// It works on the CPU, in `f32`.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use unisono_candle::{Linear, Loss, Network, Parameters, SyncBatchNorm};
/// use unisono_train::{BucketSettings, Mirror, OptimizerSettings, Sgd, Share, LossSums};
///
/// type Error = Box<dyn std::error::Error + Send + Sync>;
/// let trained = unisono::threads(2, |mut comm| -> Result<u64, Error> {
///     let parameters = Parameters::new(7);
///     let layer = Linear::without_bias(&parameters, "layer", 4, 3, 1.0)?;
///     let norm = SyncBatchNorm::new(&parameters, "norm", 3)?;
///     let replica = Network::new(&parameters, move |inputs: &Tensor| {
///         let sum = norm.forward(&layer.forward(inputs)?)?.powf(3.0)?.sum_all()?;
///         let loss = f64::from(sum.to_scalar::<f32>()?);
///         Ok(Loss { sum, tally: LossSums { targets: inputs.dim(0)? as f64, loss, correct: 0.0 } })
///     });
///     let optimizer = OptimizerSettings::new(Sgd::default());
///     let mut mirror = Mirror::new(&mut comm, replica, optimizer, &BucketSettings::default(), None)?;
///     // Two samples on rank 0, and three on rank 1.
///     let rows = 2 + comm.rank();
///     let values = (0..4 * rows).map(|at| (at * 7 % 5 + comm.rank()) as f32).collect();
///     let batch = [Some(Tensor::from_vec(values, (rows, 4), &Device::Cpu)?)];
///     mirror.step(&mut comm, Share::of(&batch), 0.1, |_| true)?;
///     Ok(mirror.hash()?)
/// });
/// let hashes: Vec<u64> = trained.into_iter().collect::<Result<_, _>>().unwrap();
/// assert_eq!(hashes[0], hashes[1]);
/// ```
#[derive(Debug, Clone)]
pub struct SyncBatchNorm {
    parameters: Parameters,
    layer: usize,
    statistics: Arc<Statistics>,
    weight: Weight,
    bias: Weight,
    has_relu: bool,
}

impl SyncBatchNorm {
    /// Adds the layer `name` for values of this many channels: the parameters `NAME.weight`, initially 1, and `NAME.bias`, initially 0, and the
    /// running statistics. Called by all ranks in the same order.
    ///
    /// # Errors
    /// If a layer of this name exists, or the parameters are not on the CPU.
    pub fn new(parameters: &Parameters, name: &str, channels: usize) -> Result<Self> {
        if !parameters.device().is_cpu() {
            bail!(
                "{name}: SyncBatchNorm works on the CPU, and the model is on {:?}",
                parameters.device().location()
            );
        }
        let constant = |what: &str, value| {
            parameters.add_weight(&format!("{name}.{what}"), channels, vec![value; channels])
        };
        let (weight, bias) = (constant("weight", 1.0)?, constant("bias", 0.0)?);
        let buffer = |what: &str, value| {
            parameters.add_buffer(&format!("{name}.{what}"), channels, vec![value; channels])
        };
        let statistics = Arc::new(Statistics {
            name: name.to_owned(),
            mean: buffer("running_mean", 0.0)?,
            variance: buffer("running_var", 1.0)?,
            channels,
        });
        let layer = parameters.passes().add_layer(Arc::clone(&statistics));
        Ok(Self { parameters: parameters.clone(), layer, statistics, weight, bias, has_relu: false })
    }

    /// Adds a ReLU after the layer.
    #[must_use]
    pub fn with_relu(self) -> Self {
        Self { has_relu: true, ..self }
    }

    /// Normalises each channel of `x`. The last dimension is the channels (candle and PyTorch have them second): `rows x channels`, or `samples x
    /// height x width x channels`. Call it once in every training pass, in the same order on all ranks.
    ///
    /// # Errors
    /// If the last dimension is not the number of channels. In training, if the first pass has only one value per channel over all ranks, or if ranks are
    /// at different layers. Errors of the collective.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        chain(&self.parameters, &[self], x)
    }
}

impl Part for SyncBatchNorm {
    fn operation(&self) -> Option<Box<dyn Operation>> {
        let is_training = is_training();
        Some(Box::new(Pass { layer: self.clone(), is_training, moments: OnceLock::new() }))
    }
}

struct Pass {
    layer: SyncBatchNorm,
    is_training: bool,
    /// Set by the forward pass.
    moments: OnceLock<Moments>,
}

impl Pass {
    /// Reports the gradients of weight and bias, which buckets sum over ranks. Returns the offset and the slope of the derivative with respect to
    /// inputs. They need the sums, because each sample has changed the statistics of all.
    fn report(&self, moments: &Moments, all: Backward<'_>) -> Result<[Vec<f32>; 2]> {
        let SyncBatchNorm { parameters, layer, statistics, weight, bias, has_relu } = &self.layer;
        let [of_dy, mut of_products] =
            products(statistics.channels, all, &repeated(&moments.mean), *has_relu);
        of_products.iter_mut().zip(&moments.inverse).for_each(|(sum, inverse)| *sum *= inverse);
        for (parameter, sums) in [(bias, &of_dy), (weight, &of_products)] {
            let gradient = narrow(sums.iter().copied());
            parameter.report(&mut |target, fill| fill.write(target, &gradient));
        }
        let mut sums = [of_dy, of_products].concat();
        parameters.passes().sum(*layer, Direction::Backward, &mut sums)?;
        let (of_dy, of_products) = sums.split_at(statistics.channels);
        let slopes =
            of_products.iter().zip(&moments.inverse).map(|(sum, inverse)| sum * inverse / moments.count);
        Ok([narrow(of_dy.iter().map(|sum| sum / moments.count)), narrow(slopes)])
    }
}

impl Operation for Pass {
    fn shape(&self, dims: &[usize]) -> Result<Vec<usize>> {
        let Statistics { name, channels, .. } = &*self.layer.statistics;
        if dims.last() != Some(channels) {
            bail!("{name} normalises {channels} channels, the last dimension, and is given {dims:?}");
        }
        Ok(dims.to_vec())
    }

    fn forward(&self, _: &[usize], x: &[f32], y: &mut [f32]) -> Result<()> {
        let SyncBatchNorm { parameters, layer, statistics, weight, bias, has_relu } = &self.layer;
        weight.wait()?;
        bias.wait()?;
        let moments = if self.is_training {
            let mut sums = statistics.local(x)?;
            parameters.passes().sum(*layer, Direction::Forward, &mut sums)?;
            statistics.moments(&sums)?
        } else {
            statistics.running()?
        };
        with_all([&weight.tensor, &bias.tensor], |[weight, bias]| {
            let [mean, scale, bias] =
                [moments.narrow_mean(), moments.scale(weight), bias.to_vec()].map(|all| repeated(&all));
            normalize(x, Affine { mean: &mean, scale: &scale, bias: &bias }, *has_relu, y);
        })?;
        self.moments.set(moments).expect("an operation has one forward pass");
        Ok(())
    }

    fn backward(&self, _: &[usize], all: Backward<'_>, dx: Option<&mut [f32]>) -> Result<()> {
        let moments = self.moments.get().expect("the forward pass comes first");
        let [offset, slope] = if self.is_training {
            self.report(moments, all)?
        } else {
            [(); 2].map(|()| vec![0.0; moments.mean.len()])
        };
        let Some(dx) = dx else { return Ok(()) };
        let scale = with_values(&self.layer.weight.tensor, |weight| moments.scale(weight))?;
        let [mean, scale, offset, slope] =
            [moments.narrow_mean(), scale, offset, slope].map(|constants| repeated(&constants));
        let moved = Moved { mean: &mean, scale: &scale, offset: &offset, slope: &slope };
        differentiate(all, moved, self.layer.has_relu, dx);
        Ok(())
    }

    fn composed(&self, _: &Tensor) -> Result<Tensor> {
        bail!("{}: SyncBatchNorm works on the CPU only", self.layer.statistics.name)
    }
}
