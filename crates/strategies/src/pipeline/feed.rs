//! Micro-batches that pass through a pipeline together.

use std::ops::Range;

use unisono_data::pipeline::StageReport;
use unisono_data::{DataError, Skipped};

use unisono_train::{Batches, Feed, Steps};

/// A feed for a [`Pipeline`](super::Pipeline). One pass of the pipeline processes all micro-batches of a step. All ranks of a pipeline use the same
/// feed, the one for their rank among the [replicas](super::Grid::replicas).
#[derive(Debug)]
pub struct MicroBatches<F>(pub F);

impl<F: Feed> Feed for MicroBatches<F> {
    type Batch = Vec<F::Batch>;

    fn steps(&self) -> Option<usize> {
        self.0.steps()
    }

    fn samples(&self, steps: usize) -> Option<usize> {
        self.0.samples(steps)
    }

    fn epoch(&mut self, epoch: usize, skipped: usize) -> Result<Steps<Self::Batch>, DataError> {
        let steps = self.0.epoch(epoch, skipped)?;
        Ok(Box::new(steps.map(|step| {
            let batches: Vec<_> = step?.into_iter().flatten().collect();
            Ok(vec![Some(batches).filter(|batches| !batches.is_empty())])
        })))
    }

    fn stages(&self) -> Vec<StageReport> {
        self.0.stages()
    }

    fn skipped(&mut self, epoch: usize) -> Skipped {
        self.0.skipped(epoch)
    }

    fn held_out(&self) -> usize {
        self.0.held_out()
    }

    fn evaluation(&mut self, range: Range<usize>) -> Result<Batches<Self::Batch>, DataError> {
        let batches = self.0.evaluation(range)?;
        Ok(Box::new(batches.map(|batch| Ok(vec![batch?]))))
    }
}
