//! Metrics of models that predict numbers.

use super::{Metric, Outputs};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_match_the_errors_of_the_rows() {
        // The errors are 1, -1 and 2; the targets have the mean 2, and a sum of squared distances of 2.
        let targets = [1.0_f32, 2.0, 3.0].map(f32::to_bits);
        let outputs = Outputs { values: &[2.0, 1.0, 5.0], classes: 1, targets: &targets };
        let value = |metric: Regression| {
            let mut figures = vec![0.0; metric.figures(1)];
            metric.measure(&outputs, &mut figures);
            metric.value(&figures)
        };
        assert_eq!([Regression::R2, Regression::Mae].map(value), [1.0 - 6.0 / 2.0, 4.0 / 3.0]);
        assert!(Regression::R2.refuses(3).is_some_and(|why| why.contains("one of 3 classes")));
        assert_eq!(Regression::R2.refuses(1), None);
    }
}
