//! What stands for a mirror on a GPU in a program that has none: no value, so that nothing is ever asked of it.

use std::collections::BTreeSet;

use crate::Communicator;
use crate::train::buckets::{BucketSettings, Sums};
use crate::train::error::TrainError;
use crate::train::optimizer::{Optimizer, OptimizerSettings};
use crate::train::replica::Replica;
use crate::train::share::{Share, StepReport};

#[derive(Debug)]
pub(in crate::train) enum OnDevice {}

#[expect(clippy::unnecessary_wraps, reason = "as where there is one")]
impl OnDevice {
    pub(in crate::train) fn of<R: Replica>(
        _: &mut Communicator,
        _: &R,
        _: OptimizerSettings,
        _: &BucketSettings,
    ) -> Result<Option<Self>, TrainError> {
        Ok(None)
    }

    pub(in crate::train) fn step<R: Replica>(
        &mut self,
        _: &mut Communicator,
        _: &mut R,
        _: Share<'_, R::Batch>,
        _: f64,
        _: Option<f64>,
        _: impl FnOnce(&Sums) -> bool,
    ) -> Result<(StepReport, Option<BTreeSet<usize>>), TrainError> {
        match *self {}
    }

    pub(in crate::train) fn save(&self, _: &mut Optimizer) -> Result<(), TrainError> {
        match *self {}
    }

    pub(in crate::train) fn load(&mut self, _: &Optimizer) -> Result<(), TrainError> {
        match *self {}
    }
}
