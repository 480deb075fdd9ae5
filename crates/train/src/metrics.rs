//! Metrics of a model on the held-out samples, besides loss and accuracy.
//!
//! ```
//! use unisono_train::metrics::{Metric, Outputs};
//!
//! /// The fraction of targets whose class is given a probability above a half.
//! #[derive(Debug)]
//! struct Confident;
//!
//! impl Metric for Confident {
//!     fn name(&self) -> String {
//!         "confident".to_owned()
//!     }
//!     fn figures(&self, _: usize) -> usize {
//!         2
//!     }
//!     fn measure(&self, outputs: &Outputs<'_>, figures: &mut [f64]) {
//!         for (row, target) in outputs.rows() {
//!             let total: f32 = row.iter().map(|output| output.exp()).sum();
//!             figures[0] += f64::from(u8::from(row[target].exp() > total / 2.0));
//!             figures[1] += 1.0;
//!         }
//!     }
//!     fn value(&self, figures: &[f64]) -> f64 {
//!         figures[0] / figures[1]
//!     }
//! }
//!
//! let outputs = Outputs { values: &[3.0, 0.0, 0.0, 0.1], classes: 2, targets: &[0, 1] };
//! let mut figures = [0.0; 2];
//! Confident.measure(&outputs, &mut figures);
//! assert_eq!(Confident.value(&figures), 1.0);
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::{LossSums, TrainError};
use serde::{Deserialize, Serialize};
use unisono::{Communicator, ReduceOp};

pub use crate::gradients::{Outputs, VisitOutputs};

/// The reductions of the figures of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The sum. A mean is the quotient of two sums.
    Sum,
    /// The maximum.
    Max,
}

/// A metric: some figures of each batch, which are reduced over batches and ranks, and a value computed from the results.
///
/// Batches are the same on any number of ranks, and their figures are combined in the order of the batches. The value therefore has the same bits on
/// any number of ranks.
pub trait Metric: fmt::Debug + Send + Sync {
    /// Returns the name in tables; unique in a run.
    fn name(&self) -> String;

    /// Returns why the metric makes no sense for this many classes, or `None` if it does.
    fn refuses(&self, _classes: usize) -> Option<String> {
        None
    }

    /// Returns the number of its figures, for this many classes.
    fn figures(&self, classes: usize) -> usize;

    /// Returns the reduction of the figures.
    fn reduction(&self) -> Reduction {
        Reduction::Sum
    }

    /// Adds these outputs to the figures of their batch, which begin at 0 or, for [`Reduction::Max`], at negative infinity.
    fn measure(&self, outputs: &Outputs<'_>, figures: &mut [f64]);

    /// Returns the value of the metric, given the figures over all samples.
    fn value(&self, figures: &[f64]) -> f64;
}

/// The metrics of a run; their names differ.
pub type Metrics = Vec<Arc<dyn Metric>>;
/// Their values, by name.
pub type Measured = BTreeMap<String, f64>;

/// The results of an evaluation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Test {
    /// The sums over all held-out targets.
    pub tally: LossSums,
    /// The values of the metrics.
    pub metrics: Measured,
}

/// The fraction of targets that are among the K classes with the highest outputs; K is less than the number of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopK(pub usize);

impl Metric for TopK {
    fn name(&self) -> String {
        format!("top-{}", self.0)
    }

    fn refuses(&self, classes: usize) -> Option<String> {
        (self.0 >= classes)
            .then(|| format!("one of {} guesses is always right among {classes} classes", self.0))
    }

    fn figures(&self, _: usize) -> usize {
        2
    }

    fn measure(&self, outputs: &Outputs<'_>, figures: &mut [f64]) {
        for (row, target) in outputs.rows() {
            // Among equal outputs, the lower class comes first.
            let comes_first = |(class, output): (usize, &f32)| {
                *output > row[target] || (*output == row[target] && class < target)
            };
            let before = row.iter().enumerate().filter(|&output| comes_first(output)).count();
            // Outputs with a NaN have no order.
            let is_right = before < self.0 && !row.iter().any(|output| output.is_nan());
            figures[0] += f64::from(u8::from(is_right));
            figures[1] += 1.0;
        }
    }

    fn value(&self, figures: &[f64]) -> f64 {
        figures[0] / figures[1]
    }
}

/// The macro F1 score: the mean over classes of the harmonic mean of precision and recall. A class that neither occurs nor is predicted does not
/// count. Outputs that are NaN predict no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct F1;

impl Metric for F1 {
    fn name(&self) -> String {
        "f1".to_owned()
    }

    fn refuses(&self, classes: usize) -> Option<String> {
        (classes == 1).then(|| "a regression has no classes".to_owned())
    }

    /// The figures of each class: its correct predictions, all its predictions, and all its targets.
    fn figures(&self, classes: usize) -> usize {
        3 * classes
    }

    fn measure(&self, outputs: &Outputs<'_>, figures: &mut [f64]) {
        for (row, target) in outputs.rows() {
            figures[3 * target + 2] += 1.0;
            if row.iter().any(|output| output.is_nan()) {
                continue;
            }
            let highest = |best: usize, class: usize| if row[class] > row[best] { class } else { best };
            let predicted = (0..row.len()).fold(0, highest);
            figures[3 * target] += f64::from(u8::from(predicted == target));
            figures[3 * predicted + 1] += 1.0;
        }
    }

    fn value(&self, figures: &[f64]) -> f64 {
        let of_class = |class: &[f64]| {
            let all = class[1] + class[2];
            (all > 0.0).then(|| 2.0 * class[0] / all)
        };
        let scores: Vec<f64> = figures.chunks_exact(3).filter_map(of_class).collect();
        scores.iter().sum::<f64>() / scores.len() as f64
    }
}

/// A metric of regressions: a quotient of sums over rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regression {
    /// The coefficient of determination, R²: 1 for exact predictions, 0 for the mean of the targets.
    R2,
    /// The mean absolute error, in the units of the targets. In a data set, the unit is their standard deviation over the training rows.
    Mae,
}

impl Metric for Regression {
    fn name(&self) -> String {
        match self {
            Self::R2 => "r2",
            Self::Mae => "mae",
        }
        .to_owned()
    }

    fn refuses(&self, classes: usize) -> Option<String> {
        (classes != 1).then(|| format!("the model predicts one of {classes} classes, and no number"))
    }

    /// The number of rows, and the sums of absolute errors, of squared errors, of targets, and of squared targets.
    fn figures(&self, _: usize) -> usize {
        5
    }

    fn measure(&self, outputs: &Outputs<'_>, figures: &mut [f64]) {
        for (output, target) in outputs.numbers() {
            let error = output - target;
            let of_row = [1.0, error.abs(), error * error, target, target * target];
            figures.iter_mut().zip(of_row).for_each(|(sum, figure)| *sum += figure);
        }
    }

    fn value(&self, figures: &[f64]) -> f64 {
        let &[rows, absolute, squared, targets, squares] = figures else {
            unreachable!("these are its figures")
        };
        match self {
            Self::R2 => 1.0 - squared / (squares - targets * targets / rows),
            Self::Mae => absolute / rows,
        }
    }
}

/// A metric that ships with the library, by its name: `top-K`, `f1`, `r2` or `mae`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Named(pub Arc<dyn Metric>);

impl TryFrom<String> for Named {
    type Error = TrainError;

    fn try_from(name: String) -> Result<Self, TrainError> {
        name.parse()
    }
}

impl From<Named> for String {
    fn from(Named(metric): Named) -> Self {
        metric.name()
    }
}

impl FromStr for Named {
    type Err = TrainError;

    fn from_str(name: &str) -> Result<Self, TrainError> {
        let most = name.strip_prefix("top-").and_then(|most| most.parse().ok()).filter(|&most| most > 0);
        match (name, most) {
            ("f1", _) => Ok(Self(Arc::new(F1))),
            ("r2", _) => Ok(Self(Arc::new(Regression::R2))),
            ("mae", _) => Ok(Self(Arc::new(Regression::Mae))),
            (_, Some(most)) => Ok(Self(Arc::new(TopK(most)))),
            _ => Err(TrainError::Setting(format!(
                "`{name}` is no metric: expected top-K, such as top-5, f1, r2 or mae; K is at least 1"
            ))),
        }
    }
}

/// Rejects metrics with the same name, and metrics that make no sense for this many classes, if the number is known.
///
/// # Errors
/// [`TrainError::Setting`].
#[doc(hidden)]
pub fn check(metrics: &[Arc<dyn Metric>], classes: Option<usize>) -> Result<(), TrainError> {
    for (number, metric) in metrics.iter().enumerate() {
        let name = metric.name();
        if metrics[..number].iter().any(|other| other.name() == name) {
            return Err(TrainError::Setting(format!("the metric {name} is asked for twice: remove one")));
        }
        if let Some(why) = classes.and_then(|classes| metric.refuses(classes)) {
            return Err(TrainError::Setting(format!("the metric {name} says nothing: {why}")));
        }
    }
    Ok(())
}

pub(super) struct Measuring<'a> {
    metrics: &'a [Arc<dyn Metric>],
    /// The lowest and the highest number of classes of this rank's outputs.
    classes: [usize; 2],
    /// The figures of each batch of this rank, by metric.
    figures: BTreeMap<usize, Vec<Vec<f64>>>,
}

impl<'a> Measuring<'a> {
    pub(super) fn new(metrics: &'a [Arc<dyn Metric>]) -> Self {
        Self { metrics, classes: [usize::MAX, 0], figures: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, batch: usize, outputs: &Outputs<'_>) {
        let (metrics, classes, [least, most]) = (self.metrics, outputs.classes, self.classes);
        self.classes = [least.min(classes), most.max(classes)];
        if self.classes != [classes; 2] || metrics.iter().any(|metric| metric.refuses(classes).is_some()) {
            // The targets may be no classes. All ranks report the refusal together, with the values.
            return;
        }
        let figures = self
            .figures
            .entry(batch)
            .or_insert_with(|| metrics.iter().map(|metric| beginning(&**metric, classes)).collect());
        for (metric, figures) in metrics.iter().zip(figures) {
            metric.measure(outputs, figures);
        }
    }

    /// Returns the values of all metrics over this many batches of all ranks. Called by all ranks.
    pub(super) fn values(self, comm: &mut Communicator, batches: usize) -> Result<Measured, TrainError> {
        if self.metrics.is_empty() || batches == 0 {
            return Ok(Measured::new());
        }
        // The complement of the minimum is the maximum of the complements.
        let mut reduced = [!self.classes[0], self.classes[1]].map(|classes| classes as u64);
        comm.all_reduce(&mut reduced, ReduceOp::Max)?;
        let [least, classes] = [!reduced[0], reduced[1]].map(|classes| classes as usize);
        if classes == 0 {
            let why = "the model shows no outputs to measure metrics on: a candle model shows what cross_entropy is given, another \
                       model what its Replica::evaluate says";
            return Err(TrainError::Setting(why.to_owned()));
        }
        if least != classes {
            return Err(TrainError::Setting(format!(
                "the model shows outputs with {least} classes, and others with {classes}: metrics need as many in all batches"
            )));
        }
        check(self.metrics, Some(classes))?;
        let mut values = Measured::new();
        for (number, metric) in self.metrics.iter().enumerate() {
            let none = beginning(&**metric, classes);
            let mut all = none.repeat(batches);
            for (batch, figures) in &self.figures {
                all[batch * none.len()..][..none.len()].copy_from_slice(&figures[number]);
            }
            let (op, add): (_, fn(f64, f64) -> f64) = match metric.reduction() {
                Reduction::Sum => (ReduceOp::Sum, |sum, figure| sum + figure),
                Reduction::Max => (ReduceOp::Max, f64::max),
            };
            // The figures of each batch are on one rank. The other ranks contribute neutral values.
            comm.all_reduce(&mut all, op)?;
            let mut total = none;
            for of_batch in all.chunks_exact(total.len()) {
                total.iter_mut().zip(of_batch).for_each(|(total, &figure)| *total = add(*total, figure));
            }
            values.insert(metric.name(), metric.value(&total));
        }
        Ok(values)
    }
}

fn beginning(metric: &dyn Metric, classes: usize) -> Vec<f64> {
    let value = match metric.reduction() {
        Reduction::Sum => 0.0,
        Reduction::Max => f64::NEG_INFINITY,
    };
    vec![value; metric.figures(classes)]
}

#[cfg(test)]
mod tests;
