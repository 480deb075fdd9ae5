//! The rectified linear unit, with the derivative that other frameworks give it.

use candle_core::{Result, Tensor};

use super::operation::Function;

/// `max(x, 0)`, whose derivative at 0 is 0. Candle's is 1 there, where every value of a black image lies before its bias is trained.
///
/// A NaN stays one, so that the loss shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Relu;

impl Relu {
    /// Returns the function of a number.
    #[inline(always)]
    pub(crate) fn of(x: f32) -> f32 {
        if x <= 0.0 { 0.0 } else { x }
    }
}

impl Function for Relu {
    const NAME: &'static str = "relu";
    const IS_SPLIT: bool = true;

    fn forward(&self, _: &[usize], x: &[f32], y: &mut [f32]) {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = Self::of(x));
    }

    fn backward(&self, _: &[usize], _: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]) {
        for ((dx, dy), y) in dx.iter_mut().zip(dy).zip(y) {
            *dx = if *y == 0.0 { 0.0 } else { *dy };
        }
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let zeros = x.zeros_like()?;
        x.le(&zeros)?.where_cond(&zeros, x)
    }
}
