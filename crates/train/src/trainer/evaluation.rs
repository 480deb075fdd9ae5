//! Evaluations during a run, and early stopping.

use std::sync::Arc;

use super::Trainer;
use crate::metrics::{self, Measuring, Metric, VisitOutputs};
use crate::{Event, Feed, LossSums, Progress, Replica, Test, TrainError, agree};
use unisono::{Communicator, ReduceOp};

impl<R: Replica, F: Feed<Batch = R::Batch>> Trainer<'_, R, F> {
    /// Evaluates after a step, if an evaluation is due and no round of local steps is in progress. An epoch ends with an evaluation in any case.
    pub(super) fn evaluate_in_epoch(&mut self, on_event: &mut impl FnMut(Event)) -> Result<(), TrainError> {
        let Progress { epoch, step, step_in_epoch, .. } = self.state.progress;
        let is_last = self.feed.steps() == Some(step_in_epoch);
        if !self.state.is_evaluation_due() || is_last || !self.mirror.is_between_rounds() {
            return Ok(());
        }
        let test = self.test()?;
        self.state.emit(Event::Evaluation(test.evaluation(epoch, step)), on_event)
    }

    /// Returns the results on the held-out samples, which count for early stopping. Called by all ranks, at the end of a round.
    pub(super) fn test(&mut self) -> Result<Test, TrainError> {
        if let Some(test) = self.state.tested() {
            return Ok(test);
        }
        let test = self.measured()?;
        Ok(self.state.evaluated(test))
    }

    /// Evaluates the averages of the parameters if the optimizer [keeps them](crate::optimizer::Averaged), otherwise the parameters.
    pub(super) fn measured(&mut self) -> Result<Test, TrainError> {
        let Self { world, mirror, feed, state, .. } = self;
        let comm = world.replicas();
        let mut values = mirror.averages(comm)?;
        mirror.exchange(&mut values)?;
        let test = evaluate(comm, mirror.replica(), feed, &state.settings.metrics);
        mirror.exchange(&mut values)?;
        test
    }
}

/// Evaluates a replica on the held-out samples with these metrics, each rank on its share of the batches. `metrics` may be empty. Neither the batches
/// nor the order in which their results are added depend on the number of ranks, so the result has the same bits on any number. Called by all ranks.
///
/// # Errors
/// [`TrainError`] of the data, the replica or the collectives. [`TrainError::Setting`] if there are metrics, and the replica does not provide its
/// [outputs](Replica::evaluate).
pub fn evaluate<R: Replica>(
    comm: &mut Communicator,
    replica: &mut R,
    feed: &mut impl Feed<Batch = R::Batch>,
    metrics: &[Arc<dyn Metric>],
) -> Result<Test, TrainError> {
    metrics::check(metrics, None)?;
    let batches = feed.held_out();
    let own = comm.own_part(batches);
    // One rank evaluates each batch, and the others add zero.
    let mut tallies = vec![LossSums::default(); batches];
    let mut measuring = Measuring::new(metrics);
    let measured = feed.evaluation(own.clone()).map_err(TrainError::from).and_then(|found| {
        for ((number, tally), batch) in own.clone().zip(&mut tallies[own]).zip(found) {
            let visit: VisitOutputs<'_> = &mut |outputs| measuring.add(number, outputs);
            *tally = replica.evaluate(&batch?, Some(visit).filter(|_| !metrics.is_empty()))?;
        }
        Ok(())
    });
    agree(comm, measured)?;
    comm.all_reduce::<f64>(bytemuck::cast_slice_mut(&mut tallies), ReduceOp::Sum)?;
    let mut tally = LossSums::default();
    tallies.into_iter().for_each(|of_batch| tally += of_batch);
    Ok(Test { tally, metrics: measuring.values(comm, batches)? })
}
