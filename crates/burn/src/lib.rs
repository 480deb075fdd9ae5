//! Data-parallel training of [burn](https://burn.dev) models over Unisono.
//!
//! A program keeps its model, its loop and its optimizer. Every rank computes the gradients of its own samples, and
//! [`DataParallel::mean`] turns them into the means over all ranks:
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::loss::{MseLoss, Reduction};
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{GradientsParams, SgdConfig};
//! use burn::tensor::{Device, Distribution, Tensor};
//! use unisono_burn::{DataParallel, TrainError}; // one
//!
//! let train = |comm| -> Result<Vec<f32>, TrainError> {
//!     let device = Device::flex().autodiff();
//!     let model: Linear = LinearConfig::new(4, 1).init(&device);
//!     let (mut parallel, mut model) = DataParallel::new(comm, model)?; // two
//!     let mut optimizer = SgdConfig::new().init();
//!     for _ in 0..5 {
//!         let inputs = Tensor::<2>::random([8, 4], Distribution::Default, &device); // this rank's own samples
//!         let targets = inputs.clone().sum_dim(1);
//!         let loss = MseLoss::new().forward(model.forward(inputs), targets, Reduction::Mean);
//!         let gradients = GradientsParams::from_grads(loss.backward(), &model);
//!         let gradients = parallel.mean(&model, gradients)?; // three
//!         model = optimizer.step(0.1, model, gradients);
//!     }
//!     Ok(model.weight.val().into_data().try_to_vec().expect("it is of f32"))
//! };
//! let weights = unisono::threads(2, train).into_iter().collect::<Result<Vec<_>, _>>()?;
//! assert!(weights[0] == weights[1] && weights[0].len() == 4);
//! # Ok::<(), TrainError>(())
//! ```

#![forbid(unsafe_code)]

use std::borrow::BorrowMut;
use std::fmt;

use burn::module::Module;
use burn::optim::GradientsParams;
use unisono::Communicator;
use unisono_train::{Means, agree};

mod visit;

pub use unisono_train::TrainError;
use visit::{Broadcast, Collect, Describe, Distribute};

/// The gradient reducer of a module that all ranks train together. It reduces gradients in buckets: one is in transit while the next ones are packed.
///
/// Replicas stay bit-identical as long as their optimizers are the same. Running statistics of a `BatchNorm` have no gradient: after the start, each
/// rank has those of its own samples. The parameters are of `f32`, on any device of burn. Gradients are copied through host memory. `C` is a
/// [`Communicator`], or a reference to one.
pub struct DataParallel<C = Communicator> {
    comm: C,
    /// Averages the gradients of the module's parameters, in the order of visits.
    means: Means,
}

impl<C> fmt::Debug for DataParallel<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataParallel")
            .field("parameters", &self.means.parameters().len())
            .finish_non_exhaustive()
    }
}

impl<C: BorrowMut<Communicator>> DataParallel<C> {
    /// Returns the reducer, and the module with the parameters of rank 0. All ranks call it, with modules of equal parameter names and shapes.
    ///
    /// # Errors
    /// On all ranks: [`TrainError::ModelsDiffer`] if the parameters of a rank differ from rank 0's in name or shape. [`TrainError::Setting`] on a
    /// rank whose module has no parameters, or one that is not of `f32`, and [`TrainError::Elsewhere`] on the others. Errors of the collectives.
    pub fn new<M: Module>(mut comm: C, module: M) -> Result<(Self, M), TrainError> {
        let world = comm.borrow_mut();
        let mut describe = Describe::default();
        module.visit(&mut describe);
        let parameters = agree(world, describe.result())?;
        let means = Means::new(world, parameters)?;
        let mut broadcast = Broadcast { comm: world, result: Ok(()) };
        let module = module.map(&mut broadcast);
        broadcast.result?;
        Ok((Self { comm, means }, module))
    }

    /// Returns the communicator, for instance to divide samples by its rank, or to add up metrics.
    pub fn comm(&mut self) -> &mut Communicator {
        self.comm.borrow_mut()
    }

    /// Returns the mean gradients over all ranks. All ranks call it, with the module that [`DataParallel::new`] returned, or with its state after
    /// optimizer steps. If no rank has a gradient for a parameter, the result has none. If only some ranks have one, the others count as zero.
    ///
    /// If losses are means over different numbers of targets, see [`DataParallel::mean_weighted`].
    ///
    /// # Errors
    /// On all ranks, if a mean is not finite. [`TrainError::Setting`] on a rank that has gradients of parameters outside the module. Errors of the
    /// collectives.
    pub fn mean<M: Module>(
        &mut self,
        module: &M,
        gradients: GradientsParams,
    ) -> Result<GradientsParams, TrainError> {
        self.mean_weighted(module, gradients, 1)
    }

    /// Returns the gradients of the mean loss over the targets of all ranks. `gradients` are the gradients of the **sum** of this rank's losses, over
    /// its `targets` targets. A rank may have no targets. All ranks call it.
    ///
    /// # Errors
    /// The errors of [`DataParallel::mean`], and on all ranks if no rank has a target.
    pub fn mean_weighted<M: Module>(
        &mut self,
        module: &M,
        gradients: GradientsParams,
        targets: usize,
    ) -> Result<GradientsParams, TrainError> {
        let mut describe = Describe::default();
        module.visit(&mut describe);
        if describe.result()? != self.means.parameters() {
            let why = "the module has other parameters than in DataParallel::new: expected the same module";
            return Err(TrainError::Setting(why.to_owned()));
        }
        let mut collect = Collect { gradients, own: Vec::new() };
        module.visit(&mut collect);
        let Collect { gradients: others, own } = collect;
        if !others.is_empty() {
            return Err(TrainError::Setting(format!(
                "there are {} gradients of parameters that the module does not have: expected those of the same module",
                others.len()
            )));
        }
        let means = self.means.of(self.comm.borrow_mut(), &own, targets as f64, |own, put| {
            put(own.as_slice().map_err(|error| format!("a gradient is not of f32: {error:?}"))?);
            Ok(())
        })?;
        let mut distribute = Distribute { values: means.into_iter(), means: GradientsParams::new() };
        module.visit(&mut distribute);
        Ok(distribute.means)
    }
}
