//! The data-parallel step: [`Mirror::step`] reads in the order in which things happen.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use super::backend::{self, Backend};
use super::buckets::{BucketSettings, Buckets, Moment, Order, Sums};
use super::local::Rounds;
use super::optimizer::averaged::AVERAGE;
use super::optimizer::{Optimizer, OptimizerSettings, clip_factor};
use super::replica::{Replica, values};
use super::share::{Share, StepReport};
use crate::compare;
use crate::error::TrainError;
use unisono::{Communicator, ReduceOp, trace};

mod passes;

/// The name of the velocity of an outer step, to save it.
pub(super) const OUTER_VELOCITY: &str = "outer velocity";

/// One rank's replica, kept identical to those of the other ranks by steps that all ranks make together.
///
/// It is the trainer without its loop, for your own loop.
#[derive(Debug)]
pub struct Mirror<R> {
    replica: R,
    /// The buckets and the optimizer.
    backend: Box<dyn Backend>,
    clip_norm: Option<f64>,
    /// Set if ranks step alone.
    rounds: Option<Rounds>,
    /// Whether a step may begin before the one before has updated all parameters.
    is_across: bool,
    /// Whether the optimizer keeps an average of the parameters.
    is_averaged: bool,
    /// Whether the result does not depend on the number of ranks.
    is_tree: bool,
    /// The number of steps that were made.
    steps: u64,
    /// The indices of parameters that were reported to have no gradient.
    never_put: BTreeSet<usize>,
}

impl<R: Replica> Mirror<R> {
    /// Makes this replica the same as rank 0's. Called by all ranks.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if settings contradict each other; [`TrainError::ModelsDiffer`] if the parameters of a rank have other
    /// names or shapes than rank 0's; errors of the collectives; [`TrainError::Replica`].
    pub fn new(
        comm: &mut Communicator,
        mut replica: R,
        optimizer: OptimizerSettings,
        buckets: &BucketSettings,
        clip_norm: Option<f64>,
    ) -> Result<Self, TrainError> {
        let buckets = &buckets.suited(comm, replica.synchronizes()).map_err(TrainError::Setting)?;
        optimizer.rule.check().map_err(TrainError::Setting)?;
        compare::parameters(comm, replica.parameters())?;
        replica.connect(comm)?;
        let is_averaged = optimizer.is_averaged();
        let backend = match replica.device(comm, &optimizer, buckets)? {
            Some(device) => device,
            None => backend::on_host(comm, replica.parameters(), optimizer, buckets, clip_norm.is_some())?,
        };
        if replica.shares_values() {
            // Wait until rank 0 has written the shared values.
            comm.barrier()?;
        }
        let count = replica.parameters().len();
        for index in 0..count {
            if replica.shares_values() && replica.parameters()[index].is_trained {
                continue;
            }
            let mut sent = Ok(());
            replica.with_values(index, &mut |values| sent = comm.broadcast(values, 0).map(drop))?;
            sent?;
        }
        let rounds = buckets
            .local_steps
            .map(|local| Rounds::new(local, count, &mut values(&mut replica)))
            .transpose()?;
        // A norm needs all buckets.
        let is_across = backend.buckets().is_across && clip_norm.is_none() && replica.brings_values();
        let (is_tree, never_put) = (buckets.order == Order::Tree, BTreeSet::new());
        Ok(Self { replica, backend, clip_norm, rounds, is_across, is_averaged, is_tree, steps: 0, never_put })
    }

    /// Makes a data-parallel step. Every rank accumulates the gradients of its micro-batches; during the last one, buckets are
    /// all-reduced as they fill, together with the number of targets, so the mean is weighted for any shares. Then all ranks
    /// make the same update. Called by all ranks.
    ///
    /// `goes_on` receives the sums before the update and decides whether to make it; it must return the
    /// same on all ranks.
    ///
    /// # Errors
    /// Errors of the collectives; [`TrainError::Replica`]; [`TrainError::NotFinite`] if a gradient to clip is not finite, or a parameter
    /// is not after its update. With a [sharded optimizer](BucketSettings::shard_optimizer) or [local
    /// steps](BucketSettings::local_steps), only some ranks may find it.
    pub fn step(
        &mut self,
        comm: &mut Communicator,
        share: Share<'_, R::Batch>,
        rate: f64,
        goes_on: impl FnOnce(&Sums) -> bool,
    ) -> Result<StepReport, TrainError> {
        let began = Instant::now();
        let (without_gradient, waited) = self.passes(comm, share)?;
        self.backend.wait_for_passes()?;
        let computed = Instant::now();
        let sums = self.backend.sums()?;
        let mut norm = None;
        if goes_on(&sums) && sums.tally.targets > 0.0 {
            // A rank that steps alone takes the mean over its own targets, if it has any.
            let targets = if self.rounds.is_some() {
                self.backend.ledger().own.tally.targets
            } else {
                sums.tally.targets
            };
            if targets > 0.0 {
                let mut scale = (1.0 / targets) as f32;
                if let Some(most) = self.clip_norm {
                    let found = self.norm(comm)? * f64::from(scale);
                    scale *= clip_factor(found, most);
                    norm = Some(found);
                }
                self.update(comm, scale, rate as f32)?;
            } else {
                // It counts, so that all ranks have made as many.
                self.backend.begin_update();
            }
            if self.rounds.as_mut().is_some_and(Rounds::step) {
                self.end_round(comm)?;
            }
        }
        self.steps += 1;
        // Its cost is soon amortised, and a network or a machine that changes is detected.
        if self.is_across && self.steps > 1 && self.steps.is_power_of_two() {
            self.backend.settle(&mut values(&mut self.replica))?;
            self.backend.finish(comm)?;
            self.backend.agree_on_order(comm)?;
        } else if !self.backend.has_left() {
            self.backend.finish(comm)?;
        }
        let mut times = self.backend.times(computed - began, computed.elapsed());
        times.compute = times.compute.saturating_sub(waited);
        times.exposed += waited;
        Ok(StepReport { sums, own: self.backend.ledger().own.tally, norm, times, without_gradient })
    }

    /// Returns the norm of the summed gradient, over all parts of the model. Waits for all buckets.
    fn norm(&mut self, comm: &mut Communicator) -> Result<f64, TrainError> {
        let mut squares = 0.0;
        // The trained ones, in the order in which buckets arrive.
        for index in self.backend.ledger().plan.members.concat() {
            self.backend.complete(comm, index)?;
            let square_sum = self.backend.square_sum(index)?;
            if !square_sum.is_finite() {
                let (parameter, rank) = (self.replica.parameters()[index].name.clone(), comm.rank());
                let (found, step) = (square_sum as f32, self.steps + 1);
                return Err(TrainError::NotFinite { of: "gradient", parameter, found, rank, step });
            }
            squares += square_sum;
        }
        if let Some(mut parts) = self.replica.parts() {
            squares = parts.sum(squares)?;
        }
        Ok(squares.sqrt())
    }

    /// Updates all parameters, bucket by bucket as they arrive. If the optimizer is sharded, this rank updates its own part of each
    /// bucket, and gets the others.
    ///
    /// If the next step may begin before, it ends with the bucket that the next forward pass needs first, which is the last one.
    fn update(&mut self, comm: &mut Communicator, scale: f32, rate: f32) -> Result<(), TrainError> {
        self.backend.begin_update();
        let order = self.backend.ledger().order.clone();
        let needed = order.len().saturating_sub(1);
        let is_divided = self.backend.buckets().is_divided();
        let leaves_from = |order: &[usize]| match order.iter().position(|&bucket| bucket == needed) {
            Some(position) if self.is_across => position + 1,
            _ => order.len(),
        };
        if !is_divided {
            let (now, later) = order.split_at(leaves_from(&order));
            now.iter().try_for_each(|&bucket| self.update_bucket(comm, bucket, scale, rate))?;
            later.iter().for_each(|&bucket| self.backend.leave(bucket, scale, rate));
            return Ok(());
        }
        for &bucket in &order {
            self.update_bucket(comm, bucket, scale, rate)?;
            if !self.is_across {
                self.backend.give(comm, bucket)?;
            }
        }
        if !self.is_across {
            return order
                .iter()
                .try_for_each(|&bucket| self.backend.take(&mut values(&mut self.replica), bucket));
        }
        // All gradients have left before any parameter leaves: so these may go in the order in which they are needed.
        (0..order.len()).rev().try_for_each(|bucket| self.backend.give(comm, bucket))?;
        (0..needed).for_each(|bucket| self.backend.leave(bucket, scale, rate));
        self.backend.take(&mut values(&mut self.replica), needed)
    }

    /// Updates the parameters of a bucket, or this rank's part of them.
    fn update_bucket(
        &mut self,
        comm: &mut Communicator,
        bucket: usize,
        scale: f32,
        rate: f32,
    ) -> Result<(), TrainError> {
        for index in self.backend.ledger().plan.members[bucket].clone() {
            self.backend.complete(comm, index)?;
            let began = Instant::now();
            self.backend.update(&mut values(&mut self.replica), index, scale, rate)?;
            let name = |replica: &R| replica.parameters()[index].name.clone();
            self.span(name, began, Instant::now());
        }
        Ok(())
    }

    /// Makes the updates that the last step [left to the next](crate::Overlap::Across). A caller that wants to see the
    /// [replica](Mirror::replica) between two steps calls it first. It waits for other ranks, and they need not call it.
    ///
    /// # Errors
    /// Errors of the collectives; [`TrainError::Replica`]; [`TrainError::NotFinite`].
    pub fn settle(&mut self) -> Result<(), TrainError> {
        self.backend.settle(&mut values(&mut self.replica))
    }

    /// Ends a round of [local steps](BucketSettings::local_steps), if steps have been made since the last: all ranks then hold
    /// the same again. The trainer does so at the end of an epoch. Called by all ranks.
    ///
    /// # Errors
    /// Errors of the collectives; [`TrainError::Replica`].
    pub fn end_round(&mut self, comm: &mut Communicator) -> Result<(), TrainError> {
        if let Some(rounds) = self.rounds.as_mut().filter(|rounds| !rounds.is_between()) {
            self.backend.average(comm, &mut values(&mut self.replica), rounds)?;
            rounds.made = 0;
        }
        Ok(())
    }

    /// Returns whether all ranks hold the same: always, unless they are in a round of [local
    /// steps](BucketSettings::local_steps).
    pub fn is_between_rounds(&self) -> bool {
        self.rounds.as_ref().is_none_or(Rounds::is_between)
    }

    /// Returns the rounds of a rank that steps alone.
    pub(super) fn rounds(&mut self) -> Option<&mut Rounds> {
        self.rounds.as_mut()
    }

    /// Records in the trace what the host did. What a GPU does, it does later than the host knows.
    fn span<N: Into<Cow<'static, str>>>(
        &mut self,
        name: impl FnOnce(&R) -> N,
        began: Instant,
        ended: Instant,
    ) {
        if trace::is_on() && !self.backend.is_gpu() {
            trace::record(name(&self.replica), began, ended);
        }
    }

    /// Returns the replica.
    ///
    /// # Panics
    /// If the last step [left updates](crate::Overlap::Across): call [`Mirror::settle`] first.
    pub fn replica(&mut self) -> &mut R {
        assert!(!self.backend.has_left(), "the last step left updates: call Mirror::settle first");
        &mut self.replica
    }

    /// Returns the elements of a parameter that this rank updates, and whose optimizer state it holds: all, unless the
    /// optimizer [is sharded](BucketSettings::shard_optimizer); none if it is not trained.
    pub fn own(&self, index: usize) -> Range<usize> {
        let parameter = &self.replica.parameters()[index];
        let trained = if parameter.is_trained { parameter.count() } else { 0 };
        self.backend.buckets().own(index).unwrap_or(0..trained)
    }

    /// Returns the optimizer and its state of [this rank's own elements](Mirror::own), which is copied to the host if it is
    /// on a GPU.
    ///
    /// # Errors
    /// [`TrainError::Replica`] if the state cannot be copied.
    pub fn optimizer(&mut self) -> Result<&Optimizer, TrainError> {
        self.settle()?;
        self.backend.optimizer()
    }

    /// Restores the optimizer's state of [this rank's own elements](Mirror::own) after this many steps: [`Optimizer::restore`].
    ///
    /// # Errors
    /// [`TrainError::OtherRun`] if the state is of another optimizer; [`TrainError::Replica`].
    pub fn restore_optimizer<'a>(
        &mut self,
        steps: u64,
        state: impl IntoIterator<Item = (&'a str, usize, &'a [f32])>,
    ) -> Result<(), TrainError> {
        self.settle()?;
        self.backend.restore_optimizer(steps, &mut state.into_iter())
    }

    /// Returns the optimizer's state for all elements and what compressors have not sent yet, to save them; empty on ranks other than 0.
    /// Called by all ranks.
    pub(super) fn moments(&mut self, comm: &mut Communicator) -> Result<Vec<Moment>, TrainError> {
        self.settle()?;
        let mut all = Vec::new();
        if comm.rank() == 0 || self.backend.buckets().is_divided() || self.rounds.is_some() {
            let own = self.backend.optimizer()?.state();
            let own = own.map(|(name, index, values)| (name.to_owned(), index, values.to_vec())).collect();
            all = self.backend.buckets().gathered(comm, own)?;
        }
        if let Some(rounds) = self.rounds.as_mut().filter(|_| comm.rank() == 0) {
            let velocities = (0..).zip(rounds.velocities());
            all.extend(velocities.map(|(index, values)| (OUTER_VELOCITY.to_owned(), index, values.clone())));
        }
        all.extend(self.backend.buckets().unsent(comm)?);
        Ok(all)
    }

    /// Returns the [averages](crate::optimizer::Averaged) of all trained parameters, with their indices, once a step is made; none if the
    /// optimizer keeps none. Called by all ranks.
    pub(crate) fn averages(&mut self, comm: &mut Communicator) -> Result<Vec<(usize, Vec<f32>)>, TrainError> {
        self.settle()?;
        let mut averages = Vec::new();
        if !self.is_averaged || self.backend.optimizer()?.steps() == 0 {
            return Ok(averages);
        }
        let own = self.backend.optimizer()?.state().filter(|(name, ..)| *name == AVERAGE);
        let own: Vec<_> = own.map(|(_, index, values)| (index, values.to_vec())).collect();
        for (index, mut values) in own {
            if !self.replica.parameters()[index].is_trained {
                continue;
            }
            if let Some(mut bits) = self.backend.buckets().bits(index, &values) {
                comm.all_reduce(&mut bits, ReduceOp::Sum)?;
                values = bytemuck::cast_vec(bits);
            }
            averages.push((index, values));
        }
        Ok(averages)
    }

    /// Exchanges the values of these parameters with these arrays.
    pub(crate) fn exchange(&mut self, arrays: &mut [(usize, Vec<f32>)]) -> Result<(), TrainError> {
        for (index, array) in arrays {
            self.replica.with_values(*index, &mut |values| values.swap_with_slice(array))?;
        }
        Ok(())
    }

    /// Returns whether the replica is on a GPU, and gradients are reduced there.
    pub fn is_on_device(&self) -> bool {
        self.backend.is_gpu()
    }

    /// Returns the buckets; empty if gradients are reduced on a GPU.
    pub fn buckets(&self) -> &Buckets {
        self.backend.buckets()
    }

    /// Returns the hash of all trained values, the same on all ranks.
    ///
    /// # Errors
    /// [`TrainError::Replica`].
    pub fn hash(&mut self) -> Result<u64, TrainError> {
        self.settle()?;
        Ok(compare::Values::of(&mut self.replica)?.trained())
    }
}
