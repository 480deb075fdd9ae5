//! The host: gradients in registered memory, and parameters in the framework's.

use std::time::Duration;

use super::late::{Bringing, Late};
use super::{Backend, Run, State};
use crate::buckets::{Buckets, Filling, Pass, Sums};
use crate::error::TrainError;
use crate::gradients::Values;
use crate::local::Rounds;
use crate::optimizer::{Optimizer, square_sum};
use crate::share::Times;
use unisono::{Communicator, copy};

#[derive(Debug)]
pub(super) struct Host {
    pub(super) buckets: Buckets,
    pub(super) optimizer: Optimizer,
    pub(super) late: Late,
}

impl Backend for Host {
    fn pass(&mut self, comm: &mut Communicator, pass: Pass, run: Run<'_>) -> Result<Vec<usize>, TrainError> {
        let pass = Pass { updates: self.optimizer.steps(), ..pass };
        let Self { buckets, optimizer, late } = self;
        if pass.number == 0 {
            late.begin();
        }
        let filling = Filling::new(buckets, comm, pass);
        let mut bringing = Bringing { filling, optimizer, late, failure: None };
        let ran = run(&mut bringing);
        // The cause that kept an update from its parameter is more precise than the end of the pass.
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

    fn begin_update(&mut self) {
        self.optimizer.begin_step();
    }

    fn update(
        &mut self,
        values_of: Values<'_>,
        index: usize,
        scale: f32,
        rate: f32,
    ) -> Result<(), TrainError> {
        let Self { buckets, optimizer, .. } = self;
        let own = buckets.own(index);
        let gradient = buckets.gradient(index)?;
        let mut made = Ok(());
        if let Some(own) = own {
            let updated = &mut buckets.updated(index)[own.clone()];
            values_of(index, &mut |values| {
                let values = &mut values[own.clone()];
                made = optimizer.update(index, values, updated, scale, rate);
                copy(updated, values);
            })?;
        } else {
            let update = &mut |values: &mut [f32]| {
                made = optimizer.update(index, values, gradient, scale, rate);
            };
            values_of(index, update)?;
        }
        made.map_err(|error| buckets.exploded(index, error, optimizer.steps()))
    }

    fn give(&mut self, comm: &mut Communicator, bucket: usize) -> Result<(), TrainError> {
        Ok(self.buckets.give(comm, bucket)?)
    }

    fn take(&mut self, values_of: Values<'_>, bucket: usize) -> Result<(), TrainError> {
        if !self.buckets.take(bucket)? {
            return Ok(());
        }
        for index in self.buckets.ledger().plan.members[bucket].clone() {
            values_of(index, &mut |values| self.buckets.copy_others(index, values))?;
        }
        Ok(())
    }

    fn leave(&mut self, bucket: usize, scale: f32, rate: f32) {
        self.late.leave(&self.buckets.ledger().plan.members[bucket], scale, rate);
    }

    fn has_left(&self) -> bool {
        self.late.first().is_some()
    }

    fn settle(&mut self, values_of: Values<'_>) -> Result<(), TrainError> {
        let Self { buckets, optimizer, late } = self;
        while let Some(index) = late.first() {
            let mut brought = Ok(());
            values_of(index, &mut |values| brought = late.wait_for_param(buckets, optimizer, index, values))?;
            brought?;
        }
        Ok(())
    }

    fn agree_on_order(&mut self, comm: &mut Communicator) -> Result<(), TrainError> {
        Ok(self.buckets.agree_on_order(comm)?)
    }

    fn average(
        &mut self,
        comm: &mut Communicator,
        values_of: Values<'_>,
        rounds: &mut Rounds,
    ) -> Result<(), TrainError> {
        let all = self.buckets.ledger().plan.members.clone();
        for (bucket, members) in all.into_iter().enumerate() {
            for &index in &members {
                let target = self.buckets.updated(index);
                values_of(index, &mut |values| copy(target, values))?;
            }
            self.buckets.sum_parameters(comm, bucket)?;
            for index in members {
                let sums = &*self.buckets.updated(index);
                let step = &mut |values: &mut [f32]| rounds.outer_step(index, values, sums, comm.ranks());
                values_of(index, step)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut Communicator) -> Result<(), TrainError> {
        Ok(self.buckets.land_all()?)
    }

    fn times(&self, passes: Duration, rest: Duration) -> Times {
        let (hidden, exposed) = self.buckets.hidden_and_exposed();
        // In turn, gradients travel during a pass; otherwise they are waited for during the update, as updated parameters always
        // are.
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

    fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    fn optimizer(&mut self) -> Result<&Optimizer, TrainError> {
        Ok(&self.optimizer)
    }

    fn restore_optimizer(&mut self, steps: u64, state: State<'_, '_>) -> Result<(), TrainError> {
        Ok(self.optimizer.restore(steps, state)?)
    }
}
