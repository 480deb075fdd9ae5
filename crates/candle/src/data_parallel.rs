//! Data-parallel training of an ordinary candle program, with a loop and an optimizer of its own.

use std::borrow::BorrowMut;
use std::collections::HashMap;
use std::fmt;
use std::sync::MutexGuard;

use candle_core::backprop::GradStore;
use candle_core::{DType, Error, Result, Tensor, Var, bail};
use candle_nn::VarMap;
use unisono::Communicator;

use crate::network::with_values;
use unisono_train::internals::parameters as compare_parameters;
use unisono_train::{BucketSettings, Buckets, Gradients as _, Parameter, Pass, Tally};

/// The variables of a candle model that all ranks train together: each rank computes the gradients of its own samples, and gets the
/// means over all ranks. Three lines make a program data-parallel:
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
/// Ranks hold the same bits, as long as their optimizers are the same. `C` is a [`Communicator`], or a reference to one.
///
/// The mean is computed once the backward pass has ended: candle has no hooks for variables. Buckets are on their way while the next ones
/// are packed. A model that takes its variables from [`Parameters`](crate::network::Parameters) is trained by a [`Mirror`](unisono_train::Mirror) with
/// buckets that overlap the backward pass.
pub struct DataParallel<C = Communicator> {
    comm: C,
    /// By name.
    variables: Vec<(String, Var)>,
    varmap: VarMap,
    /// The gradients of the variables, and then, as if it were another one, an array with a 1 for each that this rank has.
    buckets: Buckets,
}

impl<C> fmt::Debug for DataParallel<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataParallel").field("variables", &self.variables.len()).finish_non_exhaustive()
    }
}

impl<C: BorrowMut<Communicator>> DataParallel<C> {
    /// Gives all ranks the values of rank 0's variables. All ranks call it, once the model has been built, with the same variables.
    ///
    /// # Errors
    /// On all ranks, if the variables of a rank differ from rank 0's in name or shape. If there is none, or one is not of `f32` on the
    /// CPU. Errors of the collectives, such as a rank that has failed.
    pub fn new(mut comm: C, varmap: &VarMap) -> Result<Self> {
        let variables = variables(varmap);
        let unsupported =
            variables.iter().find(|(_, var)| var.dtype() != DType::F32 || !var.device().is_cpu());
        if let Some((name, var)) = unsupported {
            let (dtype, place) = (var.dtype(), var.device().location());
            bail!("variable {name} is {dtype:?} on {place:?}: DataParallel supports f32 on the CPU");
        }
        if variables.is_empty() {
            bail!("there is no variable: build the model before DataParallel::new");
        }
        let described = |(name, var): &(String, Var)| Parameter::new(name, var.dims());
        let mut described: Vec<_> = variables.iter().map(described).collect();
        let world = comm.borrow_mut();
        compare_parameters(world, &described).map_err(Error::wrap)?;
        for (_, var) in &variables {
            let mut values = var.flatten_all()?.to_vec1::<f32>()?;
            world.broadcast(&mut values, 0).map_err(Error::wrap)?;
            var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
        }
        described.push(Parameter::new("", [variables.len()]));
        let buckets = Buckets::new(world, &described, &BucketSettings::default()).map_err(Error::wrap)?;
        Ok(Self { comm, variables, varmap: varmap.clone(), buckets })
    }

    /// The communicator, for instance to share out samples by its rank, or to add up metrics.
    pub fn comm(&mut self) -> &mut Communicator {
        self.comm.borrow_mut()
    }

    /// The mean over all ranks of the gradients of this rank's loss, a scalar: in place of `loss.backward()`. All ranks call it. A
    /// variable on which no rank's loss depends has no gradient.
    ///
    /// If losses are means over different numbers of targets, see [`DataParallel::backward_weighted`].
    ///
    /// # Errors
    /// Those of candle. On all ranks, if a mean is not finite. Errors of the collectives.
    pub fn backward(&mut self, loss: &Tensor) -> Result<GradStore> {
        self.mean(loss, 1.0)
    }

    /// The gradients of the mean loss over the targets of all ranks, of which this one has `targets`, perhaps none, with this sum of
    /// losses. All ranks call it.
    ///
    /// # Errors
    /// As [`DataParallel::backward`], and on all ranks if none has a target.
    pub fn backward_weighted(&mut self, loss_sum: &Tensor, targets: usize) -> Result<GradStore> {
        self.mean(loss_sum, targets as f64)
    }

    fn mean(&mut self, loss: &Tensor, weight: f64) -> Result<GradStore> {
        if lock(&self.varmap).len() != self.variables.len() {
            bail!("variables were added after DataParallel::new: build the whole model before it");
        }
        let mut gradients = loss.backward()?;
        let own: Vec<_> = self.variables.iter().map(|(_, var)| gradients.remove(var)).collect();
        self.send(&own, weight)?;
        let put = self.put_means(&mut gradients);
        // Also after an error: the program may go on, and the buckets of a step are back before the next one.
        self.buckets.land_all().map_err(Error::wrap)?;
        put.map(|()| gradients)
    }

    /// Waits for the sums, and puts the means where candle's optimizers look for gradients.
    fn put_means(&mut self, gradients: &mut GradStore) -> Result<()> {
        let targets = self.buckets.sums().map_err(Error::wrap)?.tally.targets;
        if targets == 0.0 {
            bail!("no rank has a target: expected at least one among all ranks");
        }
        let reached = self.buckets.gradient(self.variables.len()).map_err(Error::wrap)?.to_vec();
        let reached = (0..).zip(&self.variables).zip(reached).filter(|&(_, ranks)| ranks > 0.0);
        for ((index, (name, var)), _) in reached {
            let sums = self.buckets.gradient(index).map_err(Error::wrap)?;
            let mean = quotients(sums, targets);
            // A loop without an exit, which the compiler vectorises.
            if !mean.iter().fold(true, |are_finite, value| are_finite & value.is_finite()) {
                let value = mean.iter().copied().find(|value| !value.is_finite()).unwrap_or(f32::NAN);
                bail!("the gradient of variable {name} is not finite: it has the value {value}");
            }
            gradients.insert(var, Tensor::from_vec(mean, var.shape(), var.device())?);
        }
        Ok(())
    }

    /// Packs this rank's gradients; each bucket leaves once it is full.
    fn send(&mut self, own: &[Option<Tensor>], weight: f64) -> Result<()> {
        let mut filling = self.buckets.fill(self.comm.borrow_mut(), Pass::ONLY);
        filling.weigh(Tally { targets: weight, ..Tally::default() });
        // In the order in which buckets leave: from the last to the first.
        let reached: Vec<f32> = own.iter().map(|gradient| f32::from(u8::from(gradient.is_some()))).collect();
        filling.put(own.len(), &mut |target, fill| fill.write(target, &reached));
        let mut copied = Ok(());
        for (index, gradient) in own.iter().enumerate().rev() {
            let Some(gradient) = gradient else { continue };
            let put = gradient.contiguous().and_then(|gradient| {
                with_values(&gradient, |values| {
                    filling.put(index, &mut |target, fill| fill.write(target, values));
                })
            });
            copied = copied.and(put);
        }
        filling.end().map_err(Error::wrap)?;
        copied
    }
}

/// The sums divided by a number of targets, each rounded once.
fn quotients(sums: &[f32], targets: f64) -> Vec<f32> {
    let narrow = targets as f32;
    if f64::from(narrow) == targets {
        // A third of the time, and the same bits: the quotient of two numbers of `f32` is the same if it is rounded to `f64` before
        // (Figueroa, "When is double rounding innocuous?", 1995).
        return sums.iter().map(|sum| sum / narrow).collect();
    }
    sums.iter().map(|&sum| (f64::from(sum) / targets) as f32).collect()
}

fn lock(varmap: &VarMap) -> MutexGuard<'_, HashMap<String, Var>> {
    varmap.data().lock().expect("who holds the map does not panic")
}

/// The variables in the order of their names, since that of the map is random.
fn variables(varmap: &VarMap) -> Vec<(String, Var)> {
    let mut variables: Vec<_> = lock(varmap).iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    variables.sort_by(|(one, _), (other, _)| one.cmp(other));
    variables
}

#[cfg(test)]
mod tests;
