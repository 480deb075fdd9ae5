//! Updates that a step defers to the next one, whose forward pass runs while buckets are still in flight.

use std::time::{Duration, Instant};

use super::Update;
use crate::buckets::{Buckets, Filling};
use crate::error::TrainError;
use crate::gradients::{Fill, Gradients, LossSums, ReplicaError};
use crate::optimizer::Optimizer;

/// The deferred updates.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Whether the update is deferred, by the index of the parameter.
    is_left: Vec<bool>,
    by: Update,
    /// The times that the passes of this step spent waiting for buckets and updating parameters.
    pub(super) waited: Duration,
    pub(super) updated: Duration,
}

impl Late {
    pub(super) fn new(parameters: usize) -> Self {
        Self { is_left: vec![false; parameters], ..Self::default() }
    }

    /// Starts a step.
    pub(super) fn begin(&mut self) {
        (self.waited, self.updated) = (Duration::ZERO, Duration::ZERO);
    }

    /// Defers the updates of these parameters.
    pub(super) fn leave(&mut self, parameters: &[usize], by: Update) {
        parameters.iter().for_each(|&index| self.is_left[index] = true);
        self.by = by;
    }

    /// Returns the first parameter whose update is deferred.
    pub(super) fn first(&self) -> Option<usize> {
        self.is_left.iter().position(|&is_left| is_left)
    }

    /// Makes the deferred update of this parameter.
    pub(super) fn wait_for_param(
        &mut self,
        buckets: &mut Buckets,
        optimizer: &mut Optimizer,
        index: usize,
        values: &mut [f32],
    ) -> Result<(), TrainError> {
        if buckets.ledger().is_divided() {
            buckets.land_sent(buckets.ledger().place(index).bucket)?;
            buckets.copy_others(index, values);
        } else {
            buckets.late_gradient(index)?;
            buckets.check_finite(optimizer.steps())?;
            let Update { scale, rate } = self.by;
            let updated = optimizer.update(index, values, buckets.late_gradient(index)?, scale, rate);
            updated.map_err(|error| buckets.exploded(index, error, optimizer.steps()))?;
        }
        self.is_left[index] = false;
        Ok(())
    }
}

/// Receives the gradients of a pass, after it has made the deferred updates.
pub(super) struct Bringing<'a> {
    pub(super) filling: Filling<'a>,
    pub(super) optimizer: &'a mut Optimizer,
    pub(super) late: &'a mut Late,
    /// The error that prevented an update.
    pub(super) failure: Option<TrainError>,
}

impl Gradients for Bringing<'_> {
    fn wait_for_param(&mut self, index: usize, values: &mut [f32]) -> Result<(), ReplicaError> {
        if !self.late.is_left[index] {
            return Ok(());
        }
        let (began, buckets) = (Instant::now(), &mut *self.filling.buckets);
        let exposed = buckets.hidden_and_exposed().1;
        let brought = self.late.wait_for_param(buckets, self.optimizer, index, values);
        let waited = buckets.hidden_and_exposed().1 - exposed;
        self.late.waited += waited;
        self.late.updated += began.elapsed().saturating_sub(waited);
        brought.map_err(|error| {
            let message = error.to_string();
            self.failure = Some(error);
            message.into()
        })
    }

    /// # Panics
    /// If a replica with [`brings_values`](crate::Replica::brings_values) has not waited for one of its parameters.
    fn record_loss(&mut self, tally: LossSums) {
        if let Some(index) = self.late.first() {
            let name = &self.filling.buckets.ledger().parameters[index].name;
            panic!("the pass was weighed before it brought the values of {name}");
        }
        self.filling.record_loss(tally);
    }

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        self.filling.put(index, write);
    }
}
