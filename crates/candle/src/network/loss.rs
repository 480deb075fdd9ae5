//! The losses of classifications, each as one operation, and of regressions.

use candle_core::{D, DType, Device, Result, Tensor, bail};
use scoped_tls_hkt::scoped_thread_local;

use super::chain::apply;
use super::operation::Function;
use super::parameters::is_training;
use unisono_train::LossSums;
use unisono_train::metrics::{Outputs, VisitOutputs};

/// The result of a forward pass over a batch.
#[derive(Debug)]
pub struct Loss {
    /// The sum of the losses of all targets, to differentiate.
    pub sum: Tensor,
    /// The number of targets, and the sums of the loss and of correct predictions.
    pub tally: LossSums,
}

impl Loss {
    /// Returns the loss of a classification: [`cross_entropy`] and, outside training passes, the number of rows whose highest logit is at the target.
    ///
    /// # Errors
    /// As [`cross_entropy`].
    pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Self> {
        Self::of_classes(logits, &targets.flatten_all()?.to_vec1()?, None)
    }

    /// As [`Loss::cross_entropy`], with targets on the host. `there` is their copy on the device of the logits, if there is one.
    pub(crate) fn of_classes(logits: &Tensor, known: &[u32], there: Option<&Tensor>) -> Result<Self> {
        let targets = match there {
            Some(targets) => targets.clone(),
            None => Tensor::new(known, &Device::Cpu)?.to_device(logits.device())?,
        };
        let sum = cross_entropy_of(logits, known.to_vec(), targets.clone())?;
        let loss = f64::from(sum.to_scalar::<f32>()?);
        // Accuracy is only measured in evaluations. candle finds no maximum without rows.
        let correct = if is_training() || known.is_empty() { 0.0 } else { count_correct(logits, &targets)? };
        Ok(Self { sum, tally: LossSums { targets: known.len() as f64, loss, correct } })
    }

    /// Returns the loss of a regression: the sum over rows of the squared difference between the output and its target. `outputs` is `rows x 1`.
    /// There are no classes, and so there is no accuracy. [Metrics](unisono_train::metrics) receive outputs and targets.
    ///
    /// # Errors
    /// If the numbers of targets and rows differ.
    pub fn squared_error(outputs: &Tensor, targets: &[f32]) -> Result<Self> {
        let bits: Vec<_> = targets.iter().map(|target| target.to_bits()).collect();
        Self::of_numbers(outputs, &bits)
    }

    /// As [`Loss::squared_error`], with targets as [bits](f32::to_bits).
    pub(crate) fn of_numbers(outputs: &Tensor, targets: &[u32]) -> Result<Self> {
        show(outputs, 1, targets)?;
        let numbers: Vec<_> = targets.iter().map(|&bits| f32::from_bits(bits)).collect();
        let numbers = Tensor::from_vec(numbers, (targets.len(), 1), outputs.device())?;
        let sum = (outputs - numbers)?.sqr()?.sum_all()?;
        let loss = f64::from(sum.to_scalar::<f32>()?);
        Ok(Self { sum, tally: LossSums { targets: targets.len() as f64, loss, correct: f64::NAN } })
    }
}

fn count_correct(logits: &Tensor, targets: &Tensor) -> Result<f64> {
    let right = logits.detach().argmax(D::Minus1)?.eq(targets)?.to_dtype(DType::F32)?;
    Ok(f64::from(right.sum_all()?.to_scalar::<f32>()?))
}

/// Returns the sum over rows of the cross-entropy between their softmax and their target, in nats, as a scalar.
///
/// `logits` is `rows x classes`. `targets` contains a class of type `u32` for each row. Keep targets on the CPU, where they are read, regardless of
/// the device of the logits. [Metrics](unisono_train::metrics) receive both.
///
/// # Errors
/// If the numbers of targets and rows differ, or a target is not a class.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let targets = targets.flatten_all()?;
    cross_entropy_of(logits, targets.to_vec1()?, targets.to_device(logits.device())?)
}

/// As [`cross_entropy`], with targets on the host, and `there` on the device of the logits.
fn cross_entropy_of(logits: &Tensor, targets: Vec<u32>, there: Tensor) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    if targets.len() != rows {
        bail!("{} targets for {rows} rows of logits", targets.len());
    }
    if let Some(target) = targets.iter().find(|&&target| target as usize >= classes) {
        bail!("target {target} is not one of {classes} classes");
    }
    show(logits, classes, &targets)?;
    apply(CrossEntropy { targets, there }, logits)
}

/// Passes the arguments of a loss to the observer, if there is one.
fn show(outputs: &Tensor, classes: usize, targets: &[u32]) -> Result<()> {
    if VISIT.is_set() {
        let values = outputs.detach().flatten_all()?.to_vec1::<f32>()?;
        VISIT.with(|visit| visit(&Outputs { values: &values, classes, targets }));
    }
    Ok(())
}

scoped_thread_local!(
    /// Receives the arguments of the losses that are computed on this thread.
    static mut VISIT: for<'a> &'a mut (dyn FnMut(&Outputs<'_>) + 'a)
);

/// Runs `compute`. Its losses call `visit`, if given, with their arguments.
pub(super) fn showing<R>(visit: Option<VisitOutputs<'_>>, compute: impl FnOnce() -> R) -> R {
    match visit {
        Some(visit) => VISIT.set(visit, compute),
        None => compute(),
    }
}

pub(super) struct CrossEntropy {
    pub(super) targets: Vec<u32>,
    /// The targets on the device of the logits.
    pub(super) there: Tensor,
}

impl Function for CrossEntropy {
    const NAME: &'static str = "cross-entropy";

    fn shape(&self, _: &[usize]) -> Vec<usize> {
        Vec::new()
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) {
        let rows = x.chunks_exact(dims[1]).zip(&self.targets);
        y[0] = rows
            .map(|(row, &target)| {
                let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let total: f32 = row.iter().map(|x| (x - highest).exp()).sum();
                f64::from(total.ln() + (highest - row[target as usize]))
            })
            .sum::<f64>() as f32;
    }

    fn backward(&self, dims: &[usize], x: &[f32], _: &[f32], dy: &[f32], dx: &mut [f32]) {
        let rows = x.chunks_exact(dims[1]).zip(&self.targets);
        for ((row, &target), dx) in rows.zip(dx.chunks_exact_mut(dims[1])) {
            let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut total = 0.0;
            for (dx, x) in dx.iter_mut().zip(row) {
                *dx = (x - highest).exp();
                total += *dx;
            }
            let scale = dy[0] / total;
            dx.iter_mut().for_each(|dx| *dx *= scale);
            dx[target as usize] -= dy[0];
        }
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.broadcast_sub(&x.max_keepdim(1)?.detach())?;
        let of_targets = x.gather(&self.there.unsqueeze(1)?, 1)?.squeeze(1)?;
        (x.exp()?.sum(1)?.log()? - of_targets)?.sum_all()
    }
}
