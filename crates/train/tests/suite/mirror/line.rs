//! A replica in a few lines, without a framework.

use std::sync::Arc;

use unisono::{Communicator, Topology, Unisono};
use unisono_train::metrics::VisitOutputs;
use unisono_train::optimizer::{Averaged, StepInfo, UpdateRule, largest};
use unisono_train::{AdamW, Gradients, LossSums, OptimizerSettings, Parameter, Replica, ReplicaError, Sgd};

/// A point: the input and the target.
pub(crate) type Point = ([f32; 3], f32);

/// Predicts `weight . input + bias`, by least squares. Unused parameters have no gradient.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) values: Vec<Vec<f32>>,
    /// Multiplies the gradient of the bias.
    pub(crate) factor: f32,
}

/// The indices of the parameters.
pub(crate) const WEIGHT: usize = 0;
pub(crate) const BIAS: usize = 1;
pub(crate) const UNUSED: usize = 2;
pub(crate) const COUNTER: usize = 3;

impl Line {
    pub(crate) fn new() -> Self {
        let mut parameters =
            [("weight", vec![1, 3]), ("bias", vec![1]), ("unused", vec![40]), ("counter", vec![2])]
                .map(|(name, shape)| Parameter::new(name, shape));
        parameters[COUNTER].is_trained = false;
        let values = vec![vec![0.1, -0.2, 0.3], vec![0.05], vec![1.0; 40], vec![7.0; 2]];
        Self { parameters: parameters.to_vec(), values, factor: 1.0 }
    }

    fn error(&self, (given, wanted): &Point) -> f32 {
        let weighted = self.values[WEIGHT].iter().zip(given).map(|(weight, given)| weight * given);
        weighted.sum::<f32>() + self.values[BIAS][0] - wanted
    }

    pub(crate) fn tally(&self, points: &[Point]) -> LossSums {
        let loss = points.iter().map(|point| f64::from(self.error(point)).powi(2)).sum();
        LossSums { targets: points.len() as f64, loss, correct: 0.0 }
    }
}

impl Replica for Line {
    type Batch = Vec<Point>;

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn pass(&mut self, points: &Vec<Point>, gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        gradients.record_loss(self.tally(points));
        let errors: Vec<f32> = points.iter().map(|point| 2.0 * self.error(point)).collect();
        let slope = self.factor * errors.iter().sum::<f32>();
        gradients.put(BIAS, &mut |gradient, fill| fill.write(gradient, &[slope]));
        let along =
            |axis: usize| points.iter().zip(&errors).map(|((given, _), error)| given[axis] * error).sum();
        let slopes: [f32; 3] = std::array::from_fn(along);
        gradients.put(WEIGHT, &mut |gradient, fill| fill.write(gradient, &slopes));
        Ok(())
    }

    fn evaluate(
        &mut self,
        points: &Vec<Point>,
        _: Option<VisitOutputs<'_>>,
    ) -> Result<LossSums, ReplicaError> {
        Ok(self.tally(points))
    }

    fn with_values(&mut self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        visit(&mut self.values[index]);
        Ok(())
    }
}

/// Returns the results of ranks as threads of these nodes.
pub(crate) fn on_nodes<T: Send>(nodes: &[usize], on_rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let world = Unisono::builder().nodes(Topology::from_node_sizes(nodes));
    world.on_threads(nodes.iter().sum(), on_rank).unwrap()
}

/// Returns points whose sums are not exact.
pub(crate) fn points(count: usize) -> Vec<Point> {
    let number = |at: usize| ((at * 7919 % 1000) as f32).mul_add(0.00137, -0.61);
    (0..count).map(|at| (std::array::from_fn(|axis| number(3 * at + axis)), number(5 * at + 1))).collect()
}

/// Returns variants of SGD and AdamW, and [a custom rule](PerRate), with weight decay.
pub(crate) fn optimizers() -> [OptimizerSettings; 5] {
    let nesterov = Sgd { nesterov: true, ..Sgd::default() };
    let amsgrad = AdamW { amsgrad: true, ..AdamW::default() };
    let average = Averaged::new(Arc::new(Sgd::default()), 0.75);
    let rules: [Arc<dyn UpdateRule>; 5] = [
        Arc::new(Sgd::default()),
        Arc::new(nesterov),
        Arc::new(amsgrad),
        Arc::new(PerRate),
        Arc::new(average),
    ];
    rules.map(|rule| OptimizerSettings { weight_decay: 0.1, ..rule.into() })
}

/// AdaGrad (Duchi et al., 2011), which also records the learning rates: a rule outside of the library.
#[derive(Debug)]
pub(crate) struct PerRate;

impl UpdateRule for PerRate {
    fn name(&self) -> &'static str {
        "per rate"
    }

    fn state_names(&self) -> &[&'static str] {
        &["squares", "rates"]
    }

    fn update(&self, step: StepInfo, values: &mut [f32], gradient: &[f32], state: &mut [&mut [f32]]) -> f32 {
        let [squares, rates] = state else { panic!("it has two names") };
        for (at, value) in values.iter_mut().enumerate() {
            let gradient = step.scale * gradient[at] + step.decay * *value;
            squares[at] += gradient * gradient;
            rates[at] += step.rate / step.number as f32;
            *value -= step.rate * rates[at] * gradient / (squares[at].sqrt() + 1e-10);
        }
        largest(&[values, squares])
    }
}

pub(crate) fn sgd() -> OptimizerSettings {
    OptimizerSettings { weight_decay: 0.01, ..OptimizerSettings::new(Sgd::default()) }
}
