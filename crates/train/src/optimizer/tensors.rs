//! The optimizer steps as tensor operations, for parameters on a GPU.
//!
//! Weights and vectors decay differently, so each formula is applied parameter by parameter. That costs a few kernels per
//! parameter.

use candle_core::{Result, Tensor};

use super::passes::Adam;
use super::{Optimizer, OptimizerSettings, StateError};

/// An optimizer with its state in tensors on the parameters' device.
#[derive(Debug)]
pub(crate) struct TensorOptimizer {
    settings: OptimizerSettings,
    steps: u64,
    /// The state by moment, as in the host's optimizer, then by parameter; `None` stands for zeros.
    moments: Vec<Vec<Option<Tensor>>>,
}

impl TensorOptimizer {
    /// An optimizer with zero state for this many parameters.
    pub(crate) fn new(settings: OptimizerSettings, parameters: usize) -> Self {
        let moments = vec![vec![None; parameters]; settings.kind.moments().len()];
        Self { settings, steps: 0, moments }
    }

    /// As [`Optimizer::begin_step`].
    pub(crate) fn begin_step(&mut self) {
        self.steps += 1;
    }

    /// As [`Optimizer::update`]; `values` change in place.
    ///
    /// # Errors
    /// An error of candle.
    pub(crate) fn update(
        &mut self,
        index: usize,
        values: &Tensor,
        gradient: &Tensor,
        scale: f32,
        rate: f32,
    ) -> Result<()> {
        assert!(self.steps > 0, "parameter {index} is updated before a step has begun");
        // Detached: not part of the next pass's derivative.
        let (value, gradient) = (values.detach(), (gradient.detach() * f64::from(scale))?);
        let OptimizerSettings { momentum, nesterov, weight_decay, .. } = self.settings;
        let decay = if value.rank() < 2 { 0.0 } else { f64::from(weight_decay) };
        let remembered = |moment: &Option<Tensor>| moment.clone().map_or_else(|| value.zeros_like(), Ok);
        let step = match &mut self.moments[..] {
            [velocity] => {
                let gradient = (gradient + (&value * decay)?)?;
                let momentum = f64::from(momentum);
                let moved = ((remembered(&velocity[index])? * momentum)? + &gradient)?;
                let step = if nesterov { (gradient + (&moved * momentum)?)? } else { moved.clone() };
                velocity[index] = Some(moved);
                step
            }
            [mean, square] => {
                let Adam { betas, epsilon, unbiased } = Adam::new(&self.settings, self.steps);
                // Rounded like the host's constants.
                let shares = |beta: f32| (f64::from(beta), f64::from(1.0 - beta));
                let ((kept1, new1), (kept2, new2)) = (shares(betas.0), shares(betas.1));
                let moved = ((remembered(&mean[index])? * kept1)? + (&gradient * new1)?)?;
                let squared = ((remembered(&square[index])? * kept2)? + (gradient.sqr()? * new2)?)?;
                let spread = ((&squared * f64::from(unbiased.1))?.sqrt()? + f64::from(epsilon))?;
                let step = ((&moved * f64::from(unbiased.0))? / spread)?;
                (mean[index], square[index]) = (Some(moved), Some(squared));
                (step + (&value * decay)?)?
            }
            moments => unreachable!("no optimizer remembers {} numbers of an element", moments.len()),
        };
        crate::candle::overwrite(values, &(&value - (step * f64::from(rate))?)?)
    }

    /// Copies the state to the host's optimizer of the same parameters.
    ///
    /// # Errors
    /// An error of candle.
    pub(crate) fn save(&self, host: &mut Optimizer) -> Result<()> {
        let places: Vec<_> = host.state().map(|(name, index, values)| (name, index, values.len())).collect();
        let parameters = host.parameters.len();
        let mut state = Vec::new();
        for (at, (name, index, count)) in places.into_iter().enumerate() {
            let values = match &self.moments[at / parameters][index] {
                Some(moment) => moment.flatten_all()?.to_vec1()?,
                None => vec![0.0; count],
            };
            state.push((name, index, values));
        }
        let state = state.iter().map(|(name, index, values)| (*name, *index, &values[..]));
        host.restore(self.steps, state)
            .map_err(|error: StateError| candle_core::Error::Msg(error.to_string()))
    }

    /// Copies the state from the host's optimizer of the same parameters.
    ///
    /// # Errors
    /// An error of candle.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::OptimizerKind;
    use candle_core::Device;

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

    /// Makes the same steps on the host and with tensors; in between, the state is copied to the host and back.
    fn check(settings: OptimizerSettings) {
        let counts = SHAPES.map(|shape| shape.iter().product::<usize>());
        let described = || SHAPES.into_iter().zip(counts).map(|(shape, count)| (count, shape.len() < 2));
        let mut host = Optimizer::new(settings, described()).unwrap();
        let mut by_tensors = TensorOptimizer::new(settings, SHAPES.len());
        let mut expected = counts.map(|count| values(count, 0));
        let found: Vec<_> =
            SHAPES.iter().zip(&expected).map(|(shape, values)| tensor(values, shape)).collect();
        for step in 1..=6 {
            if step == 4 {
                let mut saved = Optimizer::new(settings, described()).unwrap();
                by_tensors.save(&mut saved).unwrap();
                assert_eq!(saved.steps(), 3);
                for ((name, index, expected), (_, _, found)) in host.state().zip(saved.state()) {
                    assert!(expected.iter().any(|&value| value != 0.0), "{name} of {index}");
                    assert_close(expected, found);
                }
                by_tensors = TensorOptimizer::new(settings, SHAPES.len());
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
    fn steps_are_those_of_the_host() {
        for kind in OptimizerKind::ALL {
            for nesterov in [false, true] {
                check(OptimizerSettings { nesterov, weight_decay: 0.1, ..OptimizerSettings::new(kind) });
            }
        }
    }
}
