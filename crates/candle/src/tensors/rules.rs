//! The tensor forms of the rules of [`unisono_train`].

use std::any::Any;

use candle_core::{Result, Tensor};

use super::{TensorForm, TensorRule};
use unisono_train::internals::Adam;
use unisono_train::optimizer::{AdamW, Averaged, Sgd, StepInfo, UpdateRule};

/// Returns the tensor form of a rule, if it has one.
pub(super) fn form(rule: &dyn UpdateRule) -> Option<TensorForm> {
    let known: &dyn Any = rule;
    if let Some(sgd) = known.downcast_ref::<Sgd>() {
        return Some(TensorForm(Box::new(*sgd)));
    }
    if let Some(adamw) = known.downcast_ref::<AdamW>() {
        return Some(TensorForm(Box::new(*adamw)));
    }
    if let Some(averaged) = known.downcast_ref::<Averaged>() {
        let of = form(averaged.rule())?;
        return Some(TensorForm(Box::new(AveragedForm { of, decay: averaged.decay() })));
    }
    rule.on_tensors()?.downcast().ok().map(|form| *form)
}

impl TensorRule for Sgd {
    fn step(
        &self,
        StepInfo { decay, .. }: StepInfo,
        value: &Tensor,
        gradient: &Tensor,
        state: &mut [Tensor],
    ) -> Result<Tensor> {
        let [velocity] = state else { unreachable!("it has one name") };
        let momentum = f64::from(self.momentum);
        let gradient = (gradient + (value * f64::from(decay))?)?;
        *velocity = ((&*velocity * momentum)? + &gradient)?;
        if self.nesterov { gradient + (&*velocity * momentum)? } else { Ok(velocity.clone()) }
    }
}

impl TensorRule for AdamW {
    fn step(
        &self,
        StepInfo { number, decay, .. }: StepInfo,
        value: &Tensor,
        gradient: &Tensor,
        state: &mut [Tensor],
    ) -> Result<Tensor> {
        let [mean, square, most @ ..] = state else { unreachable!("it has two names, or three") };
        let Adam { betas, epsilon, unbiased } = Adam::new([self.beta1, self.beta2], self.epsilon, number);
        // Rounded like the host's constants.
        let [(kept1, new1), (kept2, new2)] = betas.map(|beta| (f64::from(beta), f64::from(1.0 - beta)));
        *mean = ((&*mean * kept1)? + (gradient * new1)?)?;
        *square = ((&*square * kept2)? + (gradient.sqr()? * new2)?)?;
        if let [most] = most {
            *most = most.maximum(&*square)?;
        }
        let square = most.first().unwrap_or(square);
        let spread = ((square * f64::from(unbiased[1]))?.sqrt()? + f64::from(epsilon))?;
        ((&*mean * f64::from(unbiased[0]))? / spread)? + (value * f64::from(decay))?
    }
}

#[derive(Debug)]
struct AveragedForm {
    of: TensorForm,
    decay: f32,
}

impl TensorRule for AveragedForm {
    fn step(
        &self,
        info: StepInfo,
        value: &Tensor,
        gradient: &Tensor,
        state: &mut [Tensor],
    ) -> Result<Tensor> {
        let [state @ .., average] = state else { unreachable!("it has a name at least") };
        let step = self.of.0.step(info, value, gradient, state)?;
        let kept = if info.number == 1 { 0.0 } else { f64::from(self.decay) };
        let moved = (value - (&step * f64::from(info.rate))?)?;
        *average = ((&*average * kept)? + (moved * (1.0 - kept))?)?;
        Ok(step)
    }
}
