//! Trains a user's model in one call.

use candle_core::Result;
use unisono::Communicator;

use crate::config::Config;
use crate::network::{Loss, Network, Parameters};
use unisono_train::{Callback, Sampled, Samples, Summary, TrainError, Trainer};

/// A model that [`fit`] trains on samples of the type `S`.
///
/// ```
/// use candle_core::{Device, Result, Tensor};
/// use candle_nn::{Linear, Module, linear};
/// use unisono_candle::{Config, Loss, Model, Parameters, fit};
///
/// struct Line {
///     parameters: Parameters,
///     layer: Linear,
/// }
///
/// impl Model<(f32, f32)> for Line {
///     fn parameters(&self) -> &Parameters {
///         &self.parameters
///     }
///
///     fn loss(&self, batch: &[(f32, f32)]) -> Result<Loss> {
///         let (inputs, targets): (Vec<_>, Vec<_>) = batch.iter().copied().unzip();
///         let inputs = Tensor::from_vec(inputs, (batch.len(), 1), &Device::Cpu)?;
///         Loss::squared_error(&self.layer.forward(&inputs)?, &targets)
///     }
/// }
///
/// type Error = Box<dyn std::error::Error + Send + Sync>;
///
/// let losses = unisono::threads(2, |mut comm| -> std::result::Result<f64, Error> {
///     let parameters = Parameters::new(7);
///     let line = Line { layer: linear(1, 1, parameters.var_builder())?, parameters };
///     let mut samples: Vec<_> = (0..200).map(|n| n as f32 / 100.0 - 1.0).map(|x| (x, 3.0 * x - 1.0)).collect();
///     let held_out = samples.split_off(180);
///     let config = Config { epochs: 30, batch_size: 10, ..Config::default() };
///     Ok(fit(&mut comm, &line, (samples, held_out), &config)?.last.test_loss)
/// });
/// let losses: Vec<f64> = losses.into_iter().collect::<std::result::Result<_, Error>>()?;
/// assert!(losses[0] == losses[1] && losses[0] < 0.01);
/// # Ok::<(), Error>(())
/// ```
///
/// [`Parameters`] with a closure that computes the loss also implement this trait: `(parameters, |batch: &[(f32, f32)]| …)`.
pub trait Model<S> {
    /// Returns the parameters that the model was built from.
    fn parameters(&self) -> &Parameters;

    /// Returns the loss of a batch, of a classification or a regression, in training and in evaluations.
    ///
    /// # Errors
    /// Errors of candle, which end the run on all ranks.
    fn loss(&self, batch: &[S]) -> Result<Loss>;
}

impl<S, F: Fn(&[S]) -> Result<Loss>> Model<S> for (Parameters, F) {
    fn parameters(&self) -> &Parameters {
        &self.0
    }

    fn loss(&self, batch: &[S]) -> Result<Loss> {
        self.1(batch)
    }
}

/// Trains a model on all ranks with this [`Config`]. Each rank takes its share of every global batch of `train`, and of the evaluations of `held_out`
/// (perhaps empty) at the end of every epoch. Called by all ranks with the same arguments.
///
/// `unisono train` has the same configuration, so a program may [read](Config::read) it from a file, or accept its [options](Config::options) on the
/// command line. Options of built-in data and models and of the device must be at their defaults. [`Config::learning_rate`] is the peak rate of the
/// run: it is not scaled by the batch. Each pass of a rank has [`Config::batch_size`] samples. A global batch is one pass of every rank, unless
/// [`Config::global_batch`] is set. [`Config::seed`] determines the order of samples. With [`Config::resume`] the run continues from its newest
/// checkpoint.
///
/// This runs a [`Trainer`] with a [`Sampled`] feed and a [`Network`]: buckets overlap the backward pass, and batches are prefetched.
///
/// # Errors
/// [`TrainError`] of the model, the samples, the configuration, the collectives, or of a file.
pub fn fit<S: Samples>(
    comm: &mut Communicator,
    model: &impl Model<S::Sample>,
    samples: (S, S),
    config: &Config,
) -> std::result::Result<Summary, TrainError> {
    fit_with(comm, model, samples, config, |_| ())
}

/// As [`fit`], with a [`Callback`], such as a closure that receives every [`Event`](unisono_train::Event).
///
/// # Errors
/// As [`fit`]; [`TrainError::CallbacksDiffer`] if the callbacks of ranks decide differently.
pub fn fit_with<S: Samples>(
    comm: &mut Communicator,
    model: &impl Model<S::Sample>,
    (train, held_out): (S, S),
    config: &Config,
    callback: impl Callback,
) -> std::result::Result<Summary, TrainError> {
    let network = Network::new(model.parameters(), |batch: &Vec<S::Sample>| model.loss(batch));
    let samples = [train.len(), held_out.len()];
    let (shares, settings, resumed) = config.run_of(comm, &network, model.parameters(), samples)?;
    let (threads, depth) = config.input_threads();
    let feed = Sampled::of_samples((train, held_out), config.seed, shares, threads, depth);
    let feed = feed.up_to_epoch(config.epochs);
    Trainer::new(comm, network, feed, settings, resumed)?.run(callback)
}
