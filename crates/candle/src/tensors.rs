//! Update rules as tensor operations, for parameters on a GPU.

#[cfg(any(test, feature = "cuda"))]
mod optimizer;

use std::fmt::Debug;

use candle_core::{Result, Tensor};
use unisono_train::optimizer::StepInfo;

#[cfg(feature = "cuda")]
pub(crate) use optimizer::TensorOptimizer;

/// The tensor form of an [`UpdateRule`](unisono_train::optimizer::UpdateRule).
pub trait TensorRule: Debug + Send + Sync {
    /// Updates the state with a gradient that is already scaled. Returns the amount that is multiplied by the learning rate and subtracted from
    /// `value`.
    ///
    /// # Errors
    /// An error of candle.
    fn step(&self, info: StepInfo, value: &Tensor, gradient: &Tensor, state: &mut [Tensor])
    -> Result<Tensor>;
}

/// A tensor form, as [`UpdateRule::on_tensors`](unisono_train::optimizer::UpdateRule::on_tensors) returns it. A custom rule with the tensor form
/// `form` returns `Some(Box::new(TensorForm(Box::new(form))))`. SGD and AdamW have tensor forms, with averages and without.
#[derive(Debug)]
pub struct TensorForm(pub Box<dyn TensorRule>);
