//! What stands for a mirror on a GPU in a program that has none: no value, so that nothing is ever asked of it.

use std::collections::BTreeSet;

use crate::buckets::{BucketSettings, Sums};
use crate::error::TrainError;
use crate::optimizer::{Optimizer, OptimizerSettings};
use crate::replica::Replica;
use crate::share::{Share, StepReport};
use unisono::Communicator;

#[derive(Debug)]
pub(crate) enum OnDevice {}

#[expect(clippy::unnecessary_wraps, reason = "as where there is one")]
impl OnDevice {
    pub(crate) fn of<R: Replica>(
        _: &mut Communicator,
        _: &R,
        _: OptimizerSettings,
        _: &BucketSettings,
    ) -> Result<Option<Self>, TrainError> {
        Ok(None)
    }

    pub(crate) fn step<R: Replica>(
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

    pub(crate) fn save(&self, _: &mut Optimizer) -> Result<(), TrainError> {
        match *self {}
    }

    pub(crate) fn load(&mut self, _: &Optimizer) -> Result<(), TrainError> {
        match *self {}
    }
}
