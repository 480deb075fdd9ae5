//! The host: gradients in registered memory, and parameters in the framework's. A step may defer updates to the next one, whose forward pass runs while
//! buckets are still in flight.

use std::time::{Duration, Instant};

use super::{Backend, Run, Times, Update};
use crate::buckets::Ledger;
use crate::gradients::Values;
use crate::local::Rounds;
use crate::optimizer::{Optimizer, Restore, square_sum};
use crate::{Buckets, Fill, Filling, Gradients, LossSums, Pass, ReplicaError, Sums, TrainError};
use unisono::{Communicator, copy};

#[derive(Debug)]
pub(super) struct Host {
    pub(super) buckets: Buckets,
    pub(super) optimizer: Optimizer,
    pub(super) late: Late,
    /// Whether a step may begin before the previous one has updated all parameters.
    pub(super) is_across: bool,
    pub(super) steps: u64,
}

impl Host {
    /// Waits for the parameters of a bucket that other ranks have updated.
    fn take(&mut self, values_of: Values<'_>, bucket: usize) -> Result<(), TrainError> {
        self.buckets.land_sent(bucket)?;
        for index in self.buckets.ledger().plan.members[bucket].clone() {
            values_of(index, &mut |values| self.buckets.copy_others(index, values))?;
        }
        Ok(())
    }

    /// Defers the update of a bucket's parameters or, if the optimizer is sharded, the wait for them.
    fn leave(&mut self, bucket: usize, by: Update) {
        for &index in &self.buckets.ledger().plan.members[bucket] {
            self.late.is_left[index] = true;
        }
        self.late.by = by;
    }
}

impl Backend for Host {
    fn pass(&mut self, comm: &mut Communicator, pass: Pass, run: Run<'_>) -> Result<Vec<usize>, TrainError> {
        let pass = Pass { updates: self.optimizer.steps(), ..pass };
        let Self { buckets, optimizer, late, .. } = self;
        if pass.number == 0 {
            (late.waited, late.updated) = (Duration::ZERO, Duration::ZERO);
        }
        let filling = Filling::new(buckets, comm, pass);
        let mut bringing = Bringing { filling, optimizer, late, failure: None };
        let ran = run(&mut bringing);
        // The error that prevented an update is more precise than the error of the pass.
        bringing.failure.map_or(Ok(()), Err)?;
        ran?;
        Ok(bringing.filling.end()?)
    }

    fn sums(&mut self) -> Result<Sums, TrainError> {
        Ok(self.buckets.sums()?)
    }

    fn complete(&mut self, _: &mut Communicator, index: usize) -> Result<(), TrainError> {
        self.buckets.gradient(index)?;
        self.buckets.check_finite(self.optimizer.steps())
    }

    fn square_sum(&mut self, index: usize) -> Result<f64, TrainError> {
        Ok(square_sum(self.buckets.gradient(index)?))
    }

    fn keep_residuals(&mut self) -> Result<(), TrainError> {
        Ok(self.buckets.keep_residuals()?)
    }

    fn begin_update(&mut self) {
        self.optimizer.begin_step();
    }

    /// If the optimizer is sharded, this rank updates its own part of each bucket, and receives the other parts.
    ///
    /// If the next step may overlap this one, the update ends with the bucket that the next forward pass needs first, which is the last one.
    fn update(&mut self, comm: &mut Communicator, values: Values<'_>, by: Update) -> Result<(), TrainError> {
        let order = self.buckets.ledger().order.clone();
        let needed = order.len().saturating_sub(1);
        if !self.buckets.ledger().is_divided() {
            let last = order.iter().position(|&bucket| bucket == needed).filter(|_| self.is_across);
            let (now, later) = order.split_at(last.map_or(order.len(), |last| last + 1));
            for &bucket in now {
                self.update_bucket(comm, values, bucket, by)?;
            }
            later.iter().for_each(|&bucket| self.leave(bucket, by));
            return Ok(());
        }
        for &bucket in &order {
            self.update_bucket(comm, values, bucket, by)?;
            if !self.is_across {
                self.buckets.give(comm, bucket)?;
            }
        }
        if !self.is_across {
            return order.iter().try_for_each(|&bucket| self.take(values, bucket));
        }
        // All gradients have been launched before any parameters, so the parameters may be sent in the order in which they are needed.
        (0..order.len()).rev().try_for_each(|bucket| self.buckets.give(comm, bucket))?;
        (0..needed).for_each(|bucket| self.leave(bucket, by));
        self.take(values, needed)
    }

    fn update_parameter(&mut self, values: Values<'_>, index: usize, by: Update) -> Result<(), TrainError> {
        let Self { buckets, optimizer, .. } = self;
        let (own, is_divided) = (buckets.ledger().own(index), buckets.ledger().is_divided());
        let gradient = &mut buckets.elements(index)[own.clone()];
        let mut made = Ok(());
        values(index, &mut |values| {
            let values = &mut values[own.clone()];
            made = optimizer.update(index, values, gradient, by.scale, by.rate);
            if is_divided {
                // The other ranks receive them from there.
                copy(gradient, values);
            }
        })?;
        made.map_err(|error| buckets.exploded(index, error, optimizer.steps()))
    }

    fn has_left(&self) -> bool {
        self.late.first().is_some()
    }

    fn settle(&mut self, values_of: Values<'_>) -> Result<(), TrainError> {
        let Self { buckets, optimizer, late, .. } = self;
        while let Some(index) = late.first() {
            let mut brought = Ok(());
            values_of(index, &mut |values| brought = late.wait_for_param(buckets, optimizer, index, values))?;
            brought?;
        }
        Ok(())
    }

    fn average(
        &mut self,
        comm: &mut Communicator,
        values_of: Values<'_>,
        rounds: &mut Rounds,
    ) -> Result<(), TrainError> {
        self.buckets.check()?;
        let all = self.buckets.ledger().plan.members.clone();
        for (bucket, members) in all.into_iter().enumerate() {
            for &index in &members {
                let target = self.buckets.elements(index);
                values_of(index, &mut |values| copy(target, values))?;
            }
            self.buckets.sum_parameters(comm, bucket)?;
            for index in members {
                let sums = &*self.buckets.elements(index);
                let step = &mut |values: &mut [f32]| rounds.outer_step(index, values, sums, comm.ranks());
                values_of(index, step)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, comm: &mut Communicator, values: Values<'_>) -> Result<(), TrainError> {
        self.steps += 1;
        // Powers of two amortise the cost of a new order, and still adapt to changes of the network or the machine.
        let changes_order = self.is_across && self.steps > 1 && self.steps.is_power_of_two();
        if changes_order {
            self.settle(values)?;
        }
        if !self.has_left() {
            self.buckets.land_all()?;
        }
        if changes_order {
            self.buckets.agree_on_order(comm)?;
        }
        Ok(())
    }

    fn times(&self, passes: Duration, rest: Duration) -> Times {
        let (hidden, exposed) = self.buckets.hidden_and_exposed();
        // In turn, the wait for gradients is part of a pass. Otherwise it is part of the update, as the wait for updated parameters always is.
        let beside = exposed.saturating_sub(self.late.waited);
        let during_rest = if self.buckets.is_beside() { beside } else { self.buckets.waited };
        let during_passes = exposed - during_rest;
        Times {
            input: Duration::ZERO,
            compute: passes.saturating_sub(during_passes + self.late.updated),
            hidden,
            exposed,
            update: rest.saturating_sub(during_rest) + self.late.updated,
        }
    }

    fn ledger(&self) -> &Ledger {
        self.buckets.ledger()
    }

    fn buckets(&self) -> Option<&Buckets> {
        Some(&self.buckets)
    }

    fn optimizer(&mut self) -> Result<&Optimizer, TrainError> {
        Ok(&self.optimizer)
    }

    fn restore_optimizer(&mut self, steps: u64, write: Restore<'_>) -> Result<(), TrainError> {
        self.optimizer.restore(steps, write)
    }
}

/// The deferred updates.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Whether the update is deferred, by the index of the parameter.
    is_left: Vec<bool>,
    by: Update,
    /// The times that the passes of this step spent waiting for buckets and updating parameters.
    waited: Duration,
    updated: Duration,
}

impl Late {
    pub(super) fn new(parameters: usize) -> Self {
        Self { is_left: vec![false; parameters], ..Self::default() }
    }

    fn first(&self) -> Option<usize> {
        self.is_left.iter().position(|&is_left| is_left)
    }

    /// Makes the deferred update of this parameter.
    fn wait_for_param(
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
struct Bringing<'a> {
    filling: Filling<'a>,
    optimizer: &'a mut Optimizer,
    late: &'a mut Late,
    failure: Option<TrainError>,
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
