//! The exponential moving average of parameters.

use std::sync::Arc;

use super::rule::{StepInfo, UpdateRule, check_fraction};

/// The name of the averages among an optimizer's state.
pub const AVERAGE: &str = "average";

/// An optimizer that also keeps an exponential moving average of the parameters, as part of its state. The trainer evaluates the averages, and
/// `unisono_candle::Saved` reads them instead of the parameters.
///
/// The first average is the parameter after the first step, as in PyTorch's `AveragedModel`. Parameters that are not trained have none.
#[derive(Debug, Clone)]
pub struct Averaged {
    rule: Arc<dyn UpdateRule>,
    decay: f32,
    names: Vec<&'static str>,
}

impl Averaged {
    /// Adds an average to this optimizer. `decay` is the factor by which a step decays the average.
    pub fn new(rule: Arc<dyn UpdateRule>, decay: f32) -> Self {
        let names = rule.state_names().iter().copied().chain([AVERAGE]).collect();
        Self { rule, decay, names }
    }

    /// Returns the optimizer without the average.
    pub fn rule(&self) -> &dyn UpdateRule {
        &*self.rule
    }

    /// Returns the factor by which a step decays the average.
    pub fn decay(&self) -> f32 {
        self.decay
    }
}

impl UpdateRule for Averaged {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn state_names(&self) -> &[&'static str] {
        &self.names
    }

    fn update(&self, step: StepInfo, values: &mut [f32], gradient: &[f32], state: &mut [&mut [f32]]) -> f32 {
        let [state @ .., average] = state else { unreachable!("it has a name at least") };
        let largest = self.rule.update(step, values, gradient, state);
        let kept = if step.number == 1 { 0.0 } else { self.decay };
        for (average, value) in average.iter_mut().zip(values) {
            *average = kept * *average + (1.0 - kept) * *value;
        }
        largest
    }

    fn check(&self) -> Result<(), String> {
        check_fraction("decay of the average", self.decay, false)?;
        self.rule.check()
    }

    fn scaled_rate(&self, rate: f64, factor: f64) -> f64 {
        self.rule.scaled_rate(rate, factor)
    }

    fn needs_whole(&self) -> bool {
        self.rule.needs_whole()
    }

    fn describe(&self, weight_decay: f32) -> String {
        format!("{}, averaged with a decay of {:?}", self.rule.describe(weight_decay), self.decay)
    }
}
