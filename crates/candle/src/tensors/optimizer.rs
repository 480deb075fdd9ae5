//! Optimizer steps as tensor operations, for parameters on a GPU.
//!
//! Weights and vectors decay differently, so each formula is applied parameter by parameter, at the cost of a few kernels per parameter.

use std::any::Any;

use candle_core::{Result, Tensor};

use super::{TensorForm, TensorRule};
use crate::values::overwrite;
use unisono_train::internals::Adam;
use unisono_train::optimizer::{
    AdamW, Averaged, Factors, Optimizer, OptimizerSettings, Sgd, StepInfo, UpdateRule,
};

/// An optimizer with its state in tensors on the parameters' device.
#[derive(Debug)]
pub(crate) struct TensorOptimizer {
    settings: OptimizerSettings,
    form: TensorForm,
    factors: Vec<Factors>,
    steps: u64,
    /// The state by moment, as in the host's optimizer, then by parameter. `None` stands for zeros.
    moments: Vec<Vec<Option<Tensor>>>,
}

impl TensorOptimizer {
    /// Returns an optimizer with zero state for parameters with these factors, or the reason why its rule has no tensor form.
    pub(crate) fn new(
        settings: OptimizerSettings,
        factors: Vec<Factors>,
    ) -> std::result::Result<Self, String> {
        let rule = &settings.rule;
        let Some(form) = form(&**rule) else {
            let name = rule.name();
            return Err(format!(
                "{name} has no tensor form, which a GPU needs: use --device cpu, sgd or adamw"
            ));
        };
        let moments = vec![vec![None; factors.len()]; rule.state_names().len()];
        Ok(Self { settings, form, factors, steps: 0, moments })
    }

    pub(crate) fn begin_step(&mut self) {
        self.steps += 1;
    }

    /// As [`Optimizer::update`]; `values` change in place.
    pub(crate) fn update(
        &mut self,
        index: usize,
        values: &Tensor,
        gradient: &Tensor,
        scale: f32,
        rate: f32,
    ) -> Result<()> {
        assert!(self.steps > 0, "parameter {index} is updated before a step has begun");
        // Detached, so that it is not part of the next pass's derivative.
        let (value, gradient) = (values.detach(), (gradient.detach() * f64::from(scale))?);
        let Self { settings: OptimizerSettings { weight_decay, .. }, form, factors, .. } = &*self;
        let Factors { decay, rate: factor } = factors[index];
        let (decay, rate) = (weight_decay * decay, rate * factor);
        let info = StepInfo { number: self.steps, scale, rate, decay };
        let remembered = |of_all: &Vec<Option<Tensor>>| match &of_all[index] {
            Some(moment) => Ok(moment.clone()),
            None => value.zeros_like(),
        };
        let mut state = self.moments.iter().map(remembered).collect::<Result<Vec<_>>>()?;
        let step = form.0.step(info, &value, &gradient, &mut state)?;
        for (of_all, moved) in self.moments.iter_mut().zip(state) {
            of_all[index] = Some(moved);
        }
        overwrite(values, &(&value - (step * f64::from(rate))?)?)
    }

    /// Copies the state to the host's optimizer of the same parameters.
    pub(crate) fn save(&self, host: &mut Optimizer) -> Result<()> {
        let mut moments = self.moments.iter().flatten();
        host.restore(self.steps, &mut |_, _, values| {
            match moments.next().expect("both optimizers have the same parameters") {
                Some(moment) => values.copy_from_slice(&moment.flatten_all()?.to_vec1()?),
                None => values.fill(0.0),
            }
            Ok(())
        })
    }

    /// Copies the state from the host's optimizer of the same parameters.
    pub(crate) fn load(&mut self, host: &Optimizer, parameters: &[Tensor]) -> Result<()> {
        self.steps = host.steps();
        for (at, (_, index, values)) in host.state().enumerate() {
            let parameter = &parameters[index];
            // Parameters that are not trained have no state.
            let is_trained = !values.is_empty();
            let moment =
                is_trained.then(|| Tensor::from_slice(values, parameter.shape(), parameter.device()));
            self.moments[at / parameters.len()][index] = moment.transpose()?;
        }
        Ok(())
    }
}

fn form(rule: &dyn UpdateRule) -> Option<TensorForm> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use candle_core::Device;
    use unisono_train::optimizer::Lion;

    const SHAPES: [&[usize]; 3] = [&[3, 4], &[5], &[2, 2]];

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|at| ((at + 3) * (seed + 7) * 37 % 101) as f32 / 50.0 - 1.0).collect()
    }

    fn tensor(values: &[f32], shape: &[usize]) -> Tensor {
        Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
    }

    fn flat(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn assert_close(expected: &[f32], found: &[f32]) {
        assert_eq!(expected.len(), found.len());
        for (expected, found) in expected.iter().zip(found) {
            assert!((expected - found).abs() <= 2e-6 * expected.abs().max(1.0), "{expected} {found}");
        }
    }

    /// Halves the learning rate of vectors.
    fn factors(shape: &[usize]) -> Factors {
        Factors { rate: if shape.len() < 2 { 0.5 } else { 1.0 }, ..Factors::of_shape(shape) }
    }

    /// Makes the same steps on the host and with tensors. In between, the state is copied to the host and back.
    fn check(settings: OptimizerSettings) {
        let counts = SHAPES.map(|shape| shape.iter().product::<usize>());
        let described = || SHAPES.into_iter().zip(counts).map(|(shape, count)| (count, factors(shape)));
        let made = || TensorOptimizer::new(settings.clone(), SHAPES.map(factors).to_vec()).unwrap();
        let mut host = Optimizer::new(settings.clone(), described()).unwrap();
        let mut by_tensors = made();
        let mut expected = counts.map(|count| values(count, 0));
        let found: Vec<_> =
            SHAPES.iter().zip(&expected).map(|(shape, values)| tensor(values, shape)).collect();
        for step in 1..=6 {
            if step == 4 {
                let mut saved = Optimizer::new(settings.clone(), described()).unwrap();
                by_tensors.save(&mut saved).unwrap();
                assert_eq!(saved.steps(), 3);
                for ((name, index, expected), (_, _, found)) in host.state().zip(saved.state()) {
                    assert!(expected.iter().any(|&value| value != 0.0), "{name} of {index}");
                    assert_close(expected, found);
                }
                by_tensors = made();
                by_tensors.load(&saved, &found).unwrap();
            }
            host.begin_step();
            by_tensors.begin_step();
            for (index, shape) in SHAPES.into_iter().enumerate() {
                let gradient = values(counts[index], step);
                host.update(index, &mut expected[index], &gradient, 0.25, 0.1).unwrap();
                by_tensors.update(index, &found[index], &tensor(&gradient, shape), 0.25, 0.1).unwrap();
                assert_close(&expected[index], &flat(&found[index]));
            }
        }
    }

    #[test]
    fn tensor_steps_match_the_host() {
        for flag in [false, true] {
            let sgd = OptimizerSettings::new(Sgd { nesterov: flag, ..Sgd::default() });
            let adamw = OptimizerSettings::new(AdamW { amsgrad: flag, ..AdamW::default() });
            let average = Averaged::new(Arc::new(Sgd::default()), 0.75);
            for settings in [sgd, adamw, OptimizerSettings::new(average)] {
                check(OptimizerSettings { weight_decay: 0.1, ..settings });
            }
        }
    }

    #[test]
    fn rule_without_a_tensor_form_is_refused_by_name() {
        let refused = TensorOptimizer::new(OptimizerSettings::new(Lion::default()), vec![]).unwrap_err();
        assert!(refused.starts_with("lion has no tensor form"), "{refused}");
    }
}
