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
use std::sync::Arc;

use unisono::{Communicator, ReduceOp};

mod named;
mod regression;

use crate::error::TrainError;
use crate::gradients::LossSums;
pub use crate::gradients::{Outputs, VisitOutputs};
pub use named::Named;
pub use regression::Regression;

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

/// The figures of an evaluation in progress.
pub(super) struct Measuring<'a> {
    metrics: &'a [Arc<dyn Metric>],
    classes: usize,
    /// The figures of each batch of this rank, by metric.
    figures: BTreeMap<usize, Vec<Vec<f64>>>,
}

impl<'a> Measuring<'a> {
    pub(super) fn new(metrics: &'a [Arc<dyn Metric>]) -> Self {
        Self { metrics, classes: 0, figures: BTreeMap::new() }
    }

    /// Adds the outputs of a batch.
    pub(super) fn add(&mut self, batch: usize, outputs: &Outputs<'_>) {
        self.classes = self.classes.max(outputs.classes);
        let (metrics, classes) = (self.metrics, outputs.classes);
        if metrics.iter().any(|metric| metric.refuses(classes).is_some()) {
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
    ///
    /// # Errors
    /// [`TrainError::Setting`] if no rank has received outputs. Errors of the collectives.
    pub(super) fn values(self, comm: &mut Communicator, batches: usize) -> Result<Measured, TrainError> {
        if self.metrics.is_empty() || batches == 0 {
            return Ok(Measured::new());
        }
        let mut classes = [self.classes as u64];
        comm.all_reduce(&mut classes, ReduceOp::Max)?;
        let classes = classes[0] as usize;
        if classes == 0 {
            let why = "the model shows no outputs to measure metrics on: a candle model shows what cross_entropy is given, another \
                       model what its Replica::evaluate says";
            return Err(TrainError::Setting(why.to_owned()));
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

/// Returns the initial figures.
fn beginning(metric: &dyn Metric, classes: usize) -> Vec<f64> {
    let value = match metric.reduction() {
        Reduction::Sum => 0.0,
        Reduction::Max => f64::NEG_INFINITY,
    };
    vec![value; metric.figures(classes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: usize = 3;
    /// The second target is predicted correctly, the first is ranked second, the third last.
    const VALUES: [f32; 9] = [3.0, 2.0, 1.0, 0.0, 5.0, 0.0, 1.0, 2.0, 0.0];
    const TARGETS: [u32; 3] = [1, 1, 2];

    /// The lowest output of any target, negated to make it a maximum.
    #[derive(Debug)]
    struct Worst;

    impl Metric for Worst {
        fn name(&self) -> String {
            "worst".to_owned()
        }

        fn figures(&self, _: usize) -> usize {
            1
        }

        fn reduction(&self) -> Reduction {
            Reduction::Max
        }

        fn measure(&self, outputs: &Outputs<'_>, figures: &mut [f64]) {
            outputs.rows().for_each(|(row, target)| figures[0] = figures[0].max(-f64::from(row[target])));
        }

        fn value(&self, figures: &[f64]) -> f64 {
            -figures[0]
        }
    }

    fn metrics() -> Metrics {
        vec![Arc::new(TopK(1)), Arc::new(TopK(2)), Arc::new(F1), Arc::new(Worst)]
    }

    /// Returns the values on this many ranks. Each target is a batch.
    fn values(ranks: usize) -> Measured {
        let measured = unisono::threads(ranks, |mut comm| {
            let metrics = metrics();
            let mut measuring = Measuring::new(&metrics);
            for batch in comm.own_part(3) {
                let values = &VALUES[batch * CLASSES..][..CLASSES];
                measuring.add(batch, &Outputs { values, classes: CLASSES, targets: &TARGETS[batch..=batch] });
            }
            measuring.values(&mut comm, 3).unwrap()
        });
        assert!(measured.iter().all(|own| *own == measured[0]));
        measured[0].clone()
    }

    #[test]
    fn values_are_correct_and_the_same_on_any_number_of_ranks() {
        let alone = values(1);
        assert_eq!((alone["top-1"], alone["top-2"], alone["worst"]), (1.0 / 3.0, 2.0 / 3.0, 0.0));
        // Class 0 is predicted once and never correctly. Class 1 is predicted correctly once, of two predictions and two targets.
        assert!((alone["f1"] - (0.0 + 0.5 + 0.0) / 3.0).abs() < 1e-12, "{alone:?}");
        for ranks in [2, 3, 5] {
            assert_eq!(values(ranks), alone, "{ranks} ranks");
        }
    }

    #[test]
    fn model_without_outputs_is_refused() {
        let refused =
            unisono::threads(2, |mut comm| Measuring::new(&metrics()).values(&mut comm, 3).unwrap_err());
        assert!(refused.iter().all(|error| error.to_string().contains("shows no outputs")));
    }

    #[test]
    fn metrics_of_classes_are_refused_for_a_regression() {
        let refused = unisono::threads(2, |mut comm| {
            let (metrics, target) = (metrics(), 2.5_f32.to_bits());
            let mut measuring = Measuring::new(&metrics);
            measuring.add(comm.rank(), &Outputs { values: &[2.0], classes: 1, targets: &[target] });
            measuring.values(&mut comm, 2).unwrap_err().to_string()
        });
        assert!(refused.iter().all(|why| why.contains("top-1 says nothing")), "{refused:?}");
    }

    #[test]
    fn nan_outputs_count_as_wrong() {
        let values = [f32::NAN, 0.0, f32::NAN, f32::NAN, 0.0, f32::NAN];
        let outputs = Outputs { values: &values, classes: 2, targets: &[0, 1, 0] };
        let mut figures = [0.0; 2];
        TopK(1).measure(&outputs, &mut figures);
        assert_eq!(figures, [0.0, 3.0]);
        let mut figures = [0.0; 6];
        F1.measure(&outputs, &mut figures);
        assert_eq!(F1.value(&figures), 0.0);
    }

    #[test]
    fn duplicate_and_meaningless_metrics_are_refused() {
        let refused = |metrics: Metrics, classes| check(&metrics, classes).unwrap_err().to_string();
        let twice: Metrics = vec![Arc::new(F1), Arc::new(TopK(2)), Arc::new(F1)];
        assert!(refused(twice, None).contains("f1 is asked for twice"));
        assert!(refused(vec![Arc::new(TopK(3))], Some(3)).contains("top-3 says nothing: one of 3 guesses"));
        assert!(check(&metrics()[..3], Some(3)).is_ok());
    }

    #[test]
    fn metric_names_round_trip_through_text() {
        for name in ["top-5", "f1", "r2", "mae"] {
            assert_eq!(name.parse::<Named>().unwrap().0.name(), name);
        }
        for nonsense in ["", "top-", "top-0", "f2", "top5"] {
            assert!(nonsense.parse::<Named>().unwrap_err().to_string().contains("top-5, f1, r2 or mae"));
        }
    }
}
