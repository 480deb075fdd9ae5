//! The gradients of a stage's parameters, over the micro-batches of a step.

use unisono_train::{Fill, Gradients, LossSums, Parameter};

/// The sum over all micro-batches before the last, for a parameter.
#[derive(Debug)]
pub(super) struct Sum {
    values: Vec<f32>,
    is_empty: bool,
}

impl Sum {
    pub(super) fn of(parameter: &Parameter) -> Self {
        // Zeroed memory takes no space until it is written to.
        Self { values: vec![0.0; parameter.count()], is_empty: true }
    }
}

/// Adds the gradients of a micro-batch to these sums. In the last micro-batch, reports them plus the sums, and empties the sums.
pub(super) struct Adding<'a> {
    /// The receiver of the gradients of a step, in the last micro-batch.
    pub(super) gradients: Option<&'a mut dyn Gradients>,
    /// The index of the stage's first parameter.
    pub(super) first: usize,
    pub(super) sums: &'a mut [Sum],
}

impl Adding<'_> {
    /// Reports the sums of parameters for which the last micro-batch has no gradient.
    pub(super) fn rest(self) {
        let Some(gradients) = self.gradients else { return };
        for (index, sum) in self.sums.iter_mut().enumerate().filter(|(_, sum)| !sum.is_empty) {
            gradients.put(self.first + index, &mut |target, fill| fill.write(target, &sum.values));
            sum.is_empty = true;
        }
    }
}

impl Gradients for Adding<'_> {
    /// Ignored: the last stage returns its loss sums from the forward pass.
    fn record_loss(&mut self, _: LossSums) {}

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        let sum = &mut self.sums[index];
        let Some(gradients) = &mut self.gradients else {
            write(&mut sum.values, if sum.is_empty { Fill::Set } else { Fill::Add });
            sum.is_empty = false;
            return;
        };
        gradients.put(self.first + index, &mut |target, fill| {
            write(target, fill);
            if !sum.is_empty {
                Fill::Add.write(target, &sum.values);
            }
        });
        sum.is_empty = true;
    }
}
