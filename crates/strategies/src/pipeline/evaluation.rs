//! The evaluation of a model that is cut into stages.

use unisono_steps::pipeline::Pass;

use super::{Pipeline, Stage, StageOutput};
use unisono_train::metrics::{Outputs, VisitOutputs};
use unisono_train::{LossSums, ReplicaError};

/// The outputs of the last stage.
#[derive(Debug, Default)]
struct Shown {
    values: Vec<f32>,
    classes: usize,
    targets: Vec<u32>,
}

impl<S: Stage> Pipeline<S> {
    /// Evaluates batches, one after the other, and calls `visit` with the model's outputs, if the last stage provides them. The result is the same on
    /// all ranks.
    pub(super) fn evaluate_batches(
        &mut self,
        batches: &[S::Batch],
        visit: Option<VisitOutputs<'_>>,
    ) -> Result<LossSums, ReplicaError> {
        let (mut tally, mut all) = (LossSums::default(), Vec::new());
        for (batch, micro_batch) in batches.iter().zip(0..) {
            let mut show = |outputs: &Outputs<'_>| {
                let Outputs { values, classes, targets } = *outputs;
                all.push(Shown { values: values.to_vec(), classes, targets: targets.to_vec() });
            };
            let show: VisitOutputs<'_> = &mut show;
            tally += self.evaluate_batch(batch, micro_batch, Some(show).filter(|_| visit.is_some()))?;
        }
        self.links.wait()?;
        let last = self.comm.ranks() - 1;
        self.comm.broadcast::<f64>(bytemuck::cast_slice_mut(std::slice::from_mut(&mut tally)), last)?;
        if let Some(visit) = visit {
            self.show(all, visit)?;
        }
        Ok(tally)
    }

    /// Returns the loss sums on the rank that holds the last stage.
    fn evaluate_batch(
        &mut self,
        batch: &S::Batch,
        micro_batch: usize,
        mut show: Option<VisitOutputs<'_>>,
    ) -> Result<LossSums, ReplicaError> {
        let (rank, ranks) = (self.comm.rank(), self.comm.ranks());
        let (mut before, mut tally) = (None, LossSums::default());
        for number in 0..self.stages.len() {
            let pass = Pass { is_backward: false, stage: number * ranks + rank, micro_batch };
            if ranks > 1 && pass.stage > 0 {
                before = Some(self.links.receive(Pass { stage: pass.stage - 1, ..pass })?.0);
            }
            let show = show.as_mut().map(|show| &mut **show as VisitOutputs<'_>);
            let output = self.stages[number].evaluate(batch, before.as_ref(), show)?;
            match self.check(pass.stage, output)? {
                StageOutput::Loss(of_batch) => tally = of_batch,
                StageOutput::Activations(activations) if ranks > 1 => {
                    self.links.send(pass, activations, tally)?;
                }
                StageOutput::Activations(activations) => before = Some(activations),
            }
        }
        Ok(tally)
    }

    /// Broadcasts the outputs of the last rank, and calls `visit` with them on all ranks.
    fn show(&mut self, shown: Vec<Shown>, visit: VisitOutputs<'_>) -> Result<(), ReplicaError> {
        let last = self.comm.ranks() - 1;
        let mut count = [shown.len() as u64];
        self.comm.broadcast(&mut count, last)?;
        let mut shown = shown.into_iter();
        for _ in 0..count[0] {
            let Shown { mut values, classes, mut targets } = shown.next().unwrap_or_default();
            let mut sizes = [classes as u64, targets.len() as u64];
            self.comm.broadcast(&mut sizes, last)?;
            let [classes, rows] = sizes.map(|size| size as usize);
            values.resize(classes * rows, 0.0);
            targets.resize(rows, 0);
            self.comm.broadcast(&mut values, last)?;
            self.comm.broadcast(&mut targets, last)?;
            visit(&Outputs { values: &values, classes, targets: &targets });
        }
        Ok(())
    }
}
