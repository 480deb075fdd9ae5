//! The gradients of a stage's parameters, over the micro-batches of a step.

use unisono_train::{Fill, Gradients, LossSums, Parameter};

/// The sums over the micro-batches before the last, of each parameter.
#[derive(Debug)]
pub(super) struct Sums(Vec<Sum>);

#[derive(Debug)]
struct Sum {
    count: usize,
    /// Allocated when it is first needed.
    values: Vec<f32>,
    is_empty: bool,
}

impl Sums {
    pub(super) fn of(parameters: &[Parameter]) -> Self {
        let sum =
            |parameter: &Parameter| Sum { count: parameter.count(), values: Vec::new(), is_empty: true };
        Self(parameters.iter().map(sum).collect())
    }
}

impl Gradients for Sums {
    /// The last stage gives its tally after the forward pass.
    fn record_loss(&mut self, _: LossSums) {}

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        let Sum { count, values, is_empty } = &mut self.0[index];
        values.resize(*count, 0.0);
        write(values, if *is_empty { Fill::Set } else { Fill::Add });
        *is_empty = false;
    }
}

/// Reports the gradients of the last micro-batch, with those sums. They are empty then.
pub(super) struct Adding<'a> {
    pub(super) gradients: &'a mut dyn Gradients,
    /// The index of the stage's first parameter.
    pub(super) first: usize,
    pub(super) sums: &'a mut Sums,
}

impl Adding<'_> {
    /// Reports those that the last micro-batch has no gradient for.
    pub(super) fn rest(self) {
        for (index, sum) in self.sums.0.iter_mut().enumerate().filter(|(_, sum)| !sum.is_empty) {
            self.gradients.put(self.first + index, &mut |target, fill| fill.write(target, &sum.values));
            sum.is_empty = true;
        }
    }
}

impl Gradients for Adding<'_> {
    fn record_loss(&mut self, _: LossSums) {}

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        let sum = &mut self.sums.0[index];
        self.gradients.put(self.first + index, &mut |target, fill| {
            write(target, fill);
            if !sum.is_empty {
                Fill::Add.write(target, &sum.values);
            }
        });
        sum.is_empty = true;
    }
}
