//! Data-parallel training of an ordinary candle program, with a custom loop and optimizer.

use std::borrow::BorrowMut;
use std::collections::HashMap;
use std::fmt;
use std::sync::MutexGuard;

use candle_core::backprop::GradStore;
use candle_core::{DType, Error, Result, Tensor, Var, bail};
use candle_nn::VarMap;
use unisono::Communicator;

use crate::values::with_values;
use unisono_train::{Means, Parameter, TrainError, agree};

/// The variables of a candle model with averaged gradients: each rank computes the gradients of its own samples, and receives the means over all
/// ranks. Three lines make a program data-parallel:
///
/// ```
/// # use candle_core::{DType, Device, Result, Tensor};
/// # use candle_nn::{Module, Optimizer, SGD, VarBuilder, VarMap, linear, loss};
/// # let train = |comm: unisono::Communicator| -> Result<Vec<f32>> {
/// use unisono_candle::DataParallel; // one
///
/// let varmap = VarMap::new();
/// let model = linear(4, 3, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
/// let mut parallel = DataParallel::new(comm, &varmap)?; // two
/// for _ in 0..5 {
///     let inputs = Tensor::randn(0_f32, 1.0, (8, 4), &Device::Cpu)?; // this rank's own samples
///     let targets = Tensor::new(&[0_u32, 1, 2, 0, 1, 2, 0, 1], &Device::Cpu)?;
///     let loss = loss::cross_entropy(&model.forward(&inputs)?, &targets)?;
///     let gradients = parallel.backward(&loss)?; // three, in place of loss.backward()
///     optimizer.step(&gradients)?;
/// }
/// # model.weight().flatten_all()?.to_vec1()
/// # };
/// # let weights: Vec<Vec<f32>> = unisono::threads(2, train).into_iter().collect::<Result<_>>()?;
/// # assert!(weights[0] == weights[1] && weights[0].len() == 12);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// All ranks have identical parameters as long as their optimizers are the same. Running statistics of a `BatchNorm` are variables without a
/// gradient: after the start, each rank has those of its own samples. `C` is a [`Communicator`], or a reference to one.
///
/// The mean is computed after the backward pass has ended, because candle has no hooks for variables. The all-reduce of a bucket overlaps the packing
/// of the next ones. A [`Mirror`](unisono_train::Mirror) trains a model that takes its variables from [`Parameters`](crate::network::Parameters),
/// with buckets that overlap the backward pass.
pub struct DataParallel<C = Communicator> {
    comm: C,
    /// By name.
    variables: Vec<(String, Var)>,
    varmap: VarMap,
    means: Means,
}

impl<C> fmt::Debug for DataParallel<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataParallel").field("variables", &self.variables.len()).finish_non_exhaustive()
    }
}

impl<C: BorrowMut<Communicator>> DataParallel<C> {
    /// Broadcasts the values of rank 0's variables to all ranks. Called by all ranks after building the model, with the same variables.
    ///
    /// # Errors
    /// Fails on all ranks if a rank has no variable, one that is not of `f32` on the CPU, or others than rank 0 by name or shape. Also returns
    /// errors of the collectives, such as a failed rank.
    pub fn new(mut comm: C, varmap: &VarMap) -> Result<Self> {
        let variables = variables(varmap);
        let described = |(name, var): &(String, Var)| Parameter::new(name, var.dims());
        let world = comm.borrow_mut();
        agree(world, check(&variables)).map_err(Error::wrap)?;
        let means = Means::new(world, variables.iter().map(described).collect()).map_err(Error::wrap)?;
        for (_, var) in &variables {
            let mut values = var.flatten_all()?.to_vec1::<f32>()?;
            world.broadcast(&mut values, 0).map_err(Error::wrap)?;
            var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
        }
        Ok(Self { comm, variables, varmap: varmap.clone(), means })
    }

    /// Returns the communicator, for instance to divide samples among ranks, or to sum metrics.
    pub fn comm(&mut self) -> &mut Communicator {
        self.comm.borrow_mut()
    }

    /// Returns the mean over all ranks of the gradients of this rank's loss, a scalar. Replaces `loss.backward()`. Called by all ranks. A variable on
    /// which no rank's loss depends has no gradient.
    ///
    /// If losses are means over different numbers of targets, see [`DataParallel::backward_weighted`].
    ///
    /// # Errors
    /// Errors of candle. Fails on all ranks if a mean is not finite. Errors of the collectives.
    pub fn backward(&mut self, loss: &Tensor) -> Result<GradStore> {
        self.backward_weighted(loss, 1)
    }

    /// Returns the gradients of the mean loss over the targets of all ranks. This rank has `targets` of them, perhaps none, and the sum of their
    /// losses. Called by all ranks.
    ///
    /// # Errors
    /// As [`DataParallel::backward`]. Fails on all ranks if no rank has a target.
    pub fn backward_weighted(&mut self, loss_sum: &Tensor, targets: usize) -> Result<GradStore> {
        if lock(&self.varmap).len() != self.variables.len() {
            bail!("variables were added after DataParallel::new: build the whole model before it");
        }
        let mut gradients = loss_sum.backward()?;
        let own = self
            .variables
            .iter()
            .map(|(_, var)| gradients.remove(var).map(|own| own.contiguous()).transpose());
        let own = own.collect::<Result<Vec<_>>>()?;
        let means = self
            .means
            .of(self.comm.borrow_mut(), &own, targets as f64, |own, put| Ok(with_values(own, put)?));
        for ((_, var), mean) in self.variables.iter().zip(means.map_err(Error::wrap)?) {
            if let Some(mean) = mean {
                // Candle's optimizers look up gradients under this key.
                gradients.insert(var, Tensor::from_vec(mean, var.shape(), var.device())?);
            }
        }
        Ok(gradients)
    }
}

fn lock(varmap: &VarMap) -> MutexGuard<'_, HashMap<String, Var>> {
    varmap.data().lock().expect("who holds the map does not panic")
}

/// Returns the variables sorted by name, since the order of the map is random.
fn variables(varmap: &VarMap) -> Vec<(String, Var)> {
    let mut variables: Vec<_> = lock(varmap).iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    variables.sort_by(|(one, _), (other, _)| one.cmp(other));
    variables
}

/// Rejects variables whose gradients cannot be averaged.
fn check(variables: &[(String, Var)]) -> std::result::Result<(), TrainError> {
    let unsupported = variables.iter().find(|(_, var)| var.dtype() != DType::F32 || !var.device().is_cpu());
    let why = match unsupported {
        Some((name, var)) => {
            let (dtype, place) = (var.dtype(), var.device().location());
            format!("variable {name} is {dtype:?} on {place:?}: DataParallel supports f32 on the CPU")
        }
        None if variables.is_empty() => {
            "there is no variable: build the model before DataParallel::new".to_owned()
        }
        None => return Ok(()),
    };
    Err(TrainError::Setting(why))
}

#[cfg(test)]
mod tests;
