//! Batch normalisation over the samples of all ranks.
//!
//! **Source**: Ioffe and Szegedy, "Batch normalization: accelerating deep network training by reducing internal covariate shift",
//! ICML 2015, algorithms 1 and 2; with the constants and rules of `torch.nn.SyncBatchNorm`.

use std::sync::{Arc, OnceLock};

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::fused::{values, with_values};
use super::parameters::{Parameters, bring, is_training, report};
use super::passes::Direction;
use super::statistics::{EPSILON, Moments, Statistics};
use unisono_train::Fill;

/// Batch normalisation whose mean and variance are those of the samples of *all* ranks in a pass, as `torch.nn.SyncBatchNorm`: the
/// result does not depend on how the ranks share a batch, and ranks may have different numbers of samples, or none.
///
/// In a training pass ([`Replica::pass`](unisono_train::Replica::pass) of a [`Network`](super::Network)), it makes an all-reduce in the
/// forward pass and one in the backward pass, and adds the statistics to the running ones. Everywhere else it uses those, and
/// communicates nothing. They are buffers of the model, called `NAME.running_mean` and `NAME.running_var`, the same on all ranks,
/// and in checkpoints. If a step has several passes, each has its own statistics, over the passes of this number on all ranks.
///
/// It works on the CPU, in `f32`.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use unisono_candle::{Linear, Loss, Network, Parameters, SyncBatchNorm};
/// use unisono_train::{BucketSettings, Mirror, OptimizerSettings, Sgd, Share, Tally};
///
/// type Error = Box<dyn std::error::Error + Send + Sync>;
/// let trained = unisono::threads(2, |mut comm| -> Result<u64, Error> {
///     let parameters = Parameters::new(7);
///     let layer = Linear::without_bias(&parameters, "layer", 4, 3, 1.0)?;
///     let norm = SyncBatchNorm::new(&parameters, "norm", 3)?;
///     let replica = Network::new(&parameters, move |inputs: &Tensor| {
///         let sum = norm.forward(&layer.forward(inputs)?)?.powf(3.0)?.sum_all()?;
///         let loss = f64::from(sum.to_scalar::<f32>()?);
///         Ok(Loss { sum, tally: Tally { targets: inputs.dim(0)? as f64, loss, correct: 0.0 } })
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
#[derive(Debug)]
pub struct SyncBatchNorm {
    parameters: Parameters,
    layer: usize,
    statistics: Arc<Statistics>,
    /// The indices of weight and bias, and their tensors.
    weight: (usize, Tensor),
    bias: (usize, Tensor),
}

impl SyncBatchNorm {
    /// Adds the layer `name` for values of so many channels: parameters `NAME.weight`, at first 1, and `NAME.bias`, at first 0, and
    /// the running statistics. Called by all ranks in the same order.
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
            parameters.add_plain(&format!("{name}.{what}"), Shape::from(channels), vec![value; channels])
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
        Ok(Self { parameters: parameters.clone(), layer, statistics, weight, bias })
    }

    /// Normalises each channel of `x`, whose last dimension is the channels (candle and PyTorch have them second): `rows x channels`,
    /// or `samples x height x width x channels`. Call it once in every training pass, in the same order on all ranks.
    ///
    /// # Errors
    /// If the last dimension is not the number of channels; in training, if a pass has only one value per channel over all ranks, if
    /// ranks are at different layers, and errors of the collective.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (name, channels) = (&self.statistics.name, self.statistics.channels);
        if x.dims().last() != Some(&channels) {
            bail!("{name} normalises {channels} channels, the last dimension, and is given {:?}", x.dims());
        }
        if !is_training() {
            return self.with_running_statistics(x);
        }
        for (index, tensor) in [&self.weight, &self.bias] {
            bring(*index, tensor)?;
        }
        let operation = Operation {
            parameters: self.parameters.clone(),
            layer: self.layer,
            statistics: Arc::clone(&self.statistics),
            weight: self.weight.clone(),
            bias: self.bias.0,
            bias_values: self.bias.1.clone(),
            passes_on: x.track_op(),
            moments: OnceLock::new(),
        };
        x.contiguous()?.apply_op2(self.parameters.anchor(), operation)
    }

    fn with_running_statistics(&self, x: &Tensor) -> Result<Tensor> {
        let Statistics { mean, variance, .. } = &*self.statistics;
        let scale = (&self.weight.1 / (variance + EPSILON)?.sqrt()?)?;
        x.broadcast_sub(mean)?.broadcast_mul(&scale)?.broadcast_add(&self.bias.1)
    }
}

/// One training pass through the layer, with its derivative.
struct Operation {
    parameters: Parameters,
    layer: usize,
    statistics: Arc<Statistics>,
    weight: (usize, Tensor),
    bias: usize,
    bias_values: Tensor,
    /// Whether an earlier layer needs a gradient.
    passes_on: bool,
    /// Set by the forward pass.
    moments: OnceLock<Moments>,
}

impl CustomOp2 for Operation {
    fn name(&self) -> &'static str {
        "sync-batch-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let x = values(x, layout)?;
        let mut sums = self.statistics.local(x)?;
        self.parameters.passes().sum(self.layer, Direction::Forward, &mut sums)?;
        let moments = self.statistics.moments(&sums)?;
        let mut y = Vec::with_capacity(x.len());
        with_values(&self.weight.1, |weight| {
            with_values(&self.bias_values, |bias| {
                for row in x.chunks_exact(self.statistics.channels) {
                    y.extend(row.iter().enumerate().map(|(channel, &x)| {
                        let normalized = moments.normalized(channel, x);
                        (normalized * f64::from(weight[channel]) + f64::from(bias[channel])) as f32
                    }));
                }
            })
        })??;
        self.moments.set(moments).expect("an operation has one forward pass");
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        _: &Tensor,
        _: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let moments = self.moments.get().expect("the forward pass comes first");
        let dy = dy.contiguous()?;
        let dx = with_values(x, |x| with_values(&dy, |dy| self.backward(moments, x, dy)))???;
        let dx = if self.passes_on { Some(Tensor::from_vec(dx, x.shape(), x.device())?) } else { None };
        Ok((dx, None))
    }
}

impl Operation {
    /// Reports the gradients of weight and bias, which buckets sum over ranks; and returns the derivative with respect to `x`, which
    /// needs those sums: each sample has moved the statistics of all.
    fn backward(&self, moments: &Moments, x: &[f32], dy: &[f32]) -> Result<Vec<f32>> {
        let channels = self.statistics.channels;
        let mut sums = vec![0.0; 2 * channels];
        let (of_dy, of_products) = sums.split_at_mut(channels);
        for (x, dy) in x.chunks_exact(channels).zip(dy.chunks_exact(channels)) {
            for channel in 0..channels {
                of_dy[channel] += f64::from(dy[channel]);
                of_products[channel] += f64::from(dy[channel]) * moments.normalized(channel, x[channel]);
            }
        }
        let own = |sums: &[f64]| sums.iter().map(|&sum| sum as f32).collect::<Vec<_>>();
        let (bias, weight) = (own(of_dy), own(of_products));
        report(self.bias, &mut |target: &mut [f32], fill: Fill| fill.write(target, &bias));
        report(self.weight.0, &mut |target: &mut [f32], fill: Fill| fill.write(target, &weight));
        self.parameters.passes().sum(self.layer, Direction::Backward, &mut sums)?;
        let (of_dy, of_products) = sums.split_at(channels);
        let mut dx = Vec::with_capacity(x.len());
        with_values(&self.weight.1, |weight| {
            for (x, dy) in x.chunks_exact(channels).zip(dy.chunks_exact(channels)) {
                dx.extend((0..channels).map(|channel| {
                    let through_variance = moments.normalized(channel, x[channel]) * of_products[channel];
                    let through_statistics = (of_dy[channel] + through_variance) / moments.count;
                    let scale = f64::from(weight[channel]) * moments.inverse[channel];
                    (scale * (f64::from(dy[channel]) - through_statistics)) as f32
                }));
            }
        })?;
        Ok(dx)
    }
}
