//! The data-parallel step: [`Mirror::step`] lists its operations in order.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::arrays::{gather, join};
use crate::backend::{self, Backend, Update};
use crate::buckets::WithoutGradient;
use crate::checkpoint::{Tensor, of_rank, saved_moment};
use crate::compare;
use crate::local::Rounds;
use crate::optimizer::averaged::AVERAGE;
use crate::optimizer::{Optimizer, Restore, clip_factor};
use crate::replica::values;
use crate::{
    BucketSettings, Buckets, LossSums, OptimizerSettings, Order, Pass, Replica, Share, Sums, Times,
    TrainError,
};
use unisono::{Communicator, ReduceOp, trace};

/// The name under which the velocity of an outer step is saved.
pub(super) const OUTER_VELOCITY: &str = "outer velocity";

/// The report of a step.
#[derive(Debug, Clone, Default)]
pub struct StepReport {
    /// The sums over all ranks. If all ranks were out of data, or the trainer's policy skips the step because some were, nothing was updated.
    pub sums: Sums,
    /// This rank's own sums.
    pub own: LossSums,
    /// The norm of the mean gradient, if gradients are clipped.
    pub norm: Option<f64>,
    /// The times of this rank.
    pub times: Times,
    /// The names of parameters without a gradient, which counted as zero. Each name is reported once.
    pub without_gradient: Vec<String>,
}

/// One rank's replica. All ranks step together, which keeps their replicas identical.
///
/// It is the trainer without the loop, for custom training loops.
#[derive(Debug)]
pub struct Mirror<R> {
    replica: R,
    backend: Box<dyn Backend>,
    clip_norm: Option<f64>,
    pub(super) rounds: Option<Rounds>,
    /// Whether the optimizer keeps an average of the parameters.
    is_averaged: bool,
    /// Whether the result does not depend on the number of ranks.
    is_tree: bool,
    pub(super) steps: u64,
    without: WithoutGradient,
}

impl<R: Replica> Mirror<R> {
    /// Broadcasts rank 0's values to this replica. Called by all ranks.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if settings are invalid or contradict each other, or if two parameters have the same name.
    /// [`TrainError::ModelsDiffer`] if parameters of a rank have other names or shapes than rank 0's. Errors of the collectives.
    /// [`TrainError::Replica`].
    pub fn new(
        comm: &mut Communicator,
        mut replica: R,
        optimizer: OptimizerSettings,
        buckets: &BucketSettings,
        clip_norm: Option<f64>,
    ) -> Result<Self, TrainError> {
        let buckets = &buckets.suited(comm, replica.synchronizes()).map_err(TrainError::Setting)?;
        optimizer.check().map_err(TrainError::Setting)?;
        // No norm exceeds NaN, and a negative norm would reverse the update.
        if let Some(most) = clip_norm.filter(|most| most.is_nan() || *most <= 0.0) {
            return Err(TrainError::Setting(format!("the norm to clip to is `{most}`: it must be above 0")));
        }
        compare::model(comm, replica.parameters())?;
        replica.connect(comm)?;
        let is_averaged = optimizer.is_averaged();
        let backend = match replica.device(comm, &optimizer, buckets)? {
            Some(device) => device,
            None => {
                compare::agree(comm, backend::check_on_host(&optimizer, buckets))?;
                let clips_or_brings = (clip_norm.is_some(), replica.brings_values());
                backend::on_host(comm, replica.parameters(), optimizer, buckets, clips_or_brings)?
            }
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
        let (is_tree, without) = (buckets.order == Order::Tree, WithoutGradient::default());
        Ok(Self { replica, backend, clip_norm, rounds, is_averaged, is_tree, steps: 0, without })
    }

    /// Makes a data-parallel step. Every rank accumulates the gradients of its micro-batches. During the last one, buckets are all-reduced as they
    /// fill, together with the number of targets, so that the mean is weighted correctly for any shares. Then all ranks make the same update. Called
    /// by all ranks.
    ///
    /// `goes_on` receives the sums before the update and decides whether to make it. It must return the same on all ranks. Without an update,
    /// gradients that were compressed count in a later step.
    ///
    /// # Errors
    /// Errors of the collectives. [`TrainError::Replica`]. [`TrainError::NotFinite`] if a gradient to clip is not finite, or a parameter is not
    /// finite after its update. With a [sharded optimizer](BucketSettings::shard_optimizer) or [local steps](BucketSettings::local_steps), only some
    /// ranks may detect it.
    pub fn step(
        &mut self,
        comm: &mut Communicator,
        share: Share<'_, R::Batch>,
        rate: f64,
        goes_on: impl FnOnce(&Sums) -> bool,
    ) -> Result<StepReport, TrainError> {
        let (began, steps) = (Instant::now(), self.steps);
        // Passes make the updates that the previous step has deferred.
        let passes = self.passes(comm, share).map_err(|error| error.in_step(steps));
        let (without_gradient, waited) = passes?;
        self.backend.wait_for_passes()?;
        let computed = Instant::now();
        let updated = self.update(comm, rate, goes_on).map_err(|error| error.in_step(steps + 1));
        let (sums, norm) = updated?;
        let mut times = self.backend.times(computed - began, computed.elapsed());
        times.compute = times.compute.saturating_sub(waited);
        times.exposed += waited;
        Ok(StepReport { sums, own: self.backend.ledger().own.tally, norm, times, without_gradient })
    }

    /// Runs this rank's micro-batches. Returns the parameters newly found to have no gradient, and the time that passes waited.
    fn passes(
        &mut self,
        comm: &mut Communicator,
        share: Share<'_, R::Batch>,
    ) -> Result<(Vec<String>, Duration), TrainError> {
        let Share { passes, is_out_of_data, asks_to_stop, asks_to_save } = share;
        // In a tree, all ranks have the same number of passes, and the number of a pass does not depend on the rank that makes it.
        let first = comm.rank() as u64 * if self.is_tree { passes.len() as u64 } else { 1 << 32 };
        let of = self.replica.begin_step(first, passes.len())?.max(1);
        let has_samples = |number: usize| matches!(passes.get(number), Some(Some(_)));
        let of = self.backend.passes(comm, of, &has_samples)?;
        let mut waited = Duration::ZERO;
        for number in 0..of {
            let pass = Pass { number, of, is_out_of_data, asks_to_stop, asks_to_save, ..Pass::ONLY };
            let Some(Some(batch)) = passes.get(number) else {
                self.settle()?;
                self.backend.pass(comm, pass, &mut |_| self.replica.pass_without_samples())?;
                continue;
            };
            let (began, mut ended) = (Instant::now(), None);
            let without = self.backend.pass(comm, pass, &mut |gradients| {
                self.replica.pass(batch, gradients)?;
                ended = Some(Instant::now());
                Ok(())
            })?;
            if let (Some(weighed), Some(ended)) = (self.backend.ledger().weighed, ended) {
                self.span("forward", began, weighed);
                self.span("backward", weighed, ended);
            }
            waited += self.replica.waited();
            self.without.add(without);
        }
        let name = |index: usize| self.replica.parameters()[index].name.clone();
        Ok((self.without.end_step().into_iter().map(name).collect(), waited))
    }

    /// Updates the replica with the sums of the passes, if the step goes on. Returns the sums, and the norm of the mean gradient if it is clipped.
    fn update(
        &mut self,
        comm: &mut Communicator,
        rate: f64,
        goes_on: impl FnOnce(&Sums) -> bool,
    ) -> Result<(Sums, Option<f64>), TrainError> {
        let (sums, mut norm) = (self.backend.sums()?, None);
        let goes_on = goes_on(&sums);
        if goes_on && sums.tally.targets > 0.0 {
            // In a local step, a rank takes the mean over its own targets, if it has any.
            let targets = if self.rounds.is_some() {
                self.backend.ledger().own.tally.targets
            } else {
                sums.tally.targets
            };
            // Counted also without an update, so that all ranks have the same number of updates.
            self.backend.begin_update();
            if targets > 0.0 {
                let mut by = Update { scale: (1.0 / targets) as f32, rate: rate as f32 };
                if let Some(most) = self.clip_norm {
                    let found = self.norm(comm)? * f64::from(by.scale);
                    by.scale *= clip_factor(found, most);
                    norm = Some(found);
                }
                self.backend.update(comm, &mut values(&mut self.replica), by)?;
            }
            if self.rounds.as_mut().is_some_and(Rounds::step) {
                self.end_round(comm)?;
            }
        } else {
            self.backend.keep_residuals()?;
        }
        self.backend.finish(comm, &mut values(&mut self.replica))?;
        self.steps += u64::from(goes_on);
        Ok((sums, norm))
    }

    /// Returns the norm of the summed gradient, over all parts of the model. Waits for all buckets.
    fn norm(&mut self, comm: &mut Communicator) -> Result<f64, TrainError> {
        let mut squares = 0.0;
        // Trained parameters, in the order in which buckets arrive.
        for index in self.backend.ledger().plan.members.concat() {
            self.backend.complete(comm, index)?;
            let square_sum = self.backend.square_sum(index)?;
            if !square_sum.is_finite() {
                let (found, place) = (square_sum as f32, (comm.rank(), self.steps + 1));
                return Err(self.backend.ledger().not_finite("gradient", index, found, place));
            }
            squares += square_sum;
        }
        if let Some(mut parts) = self.replica.parts() {
            squares = parts.sum(squares)?;
        }
        Ok(squares.sqrt())
    }

    /// Makes the updates that the last step [deferred](crate::Overlap::Across). Call it before you read the [replica](Mirror::replica) between two
    /// steps. It waits for other ranks, which need not call it.
    ///
    /// # Errors
    /// Errors of the collectives. [`TrainError::Replica`]. [`TrainError::NotFinite`].
    pub fn settle(&mut self) -> Result<(), TrainError> {
        let settled = self.backend.settle(&mut values(&mut self.replica));
        settled.map_err(|error| error.in_step(self.steps))
    }

    /// Ends a round of [local steps](BucketSettings::local_steps), if steps have been made since the last round. All ranks then hold the same
    /// parameters again. The trainer calls this at the end of an epoch. Called by all ranks.
    ///
    /// # Errors
    /// Errors of the collectives. [`TrainError::Replica`].
    pub fn end_round(&mut self, comm: &mut Communicator) -> Result<(), TrainError> {
        if let Some(rounds) = self.rounds.as_mut().filter(|rounds| !rounds.is_between()) {
            self.backend.average(comm, &mut values(&mut self.replica), rounds)?;
            rounds.made = 0;
        }
        Ok(())
    }

    /// Returns whether all ranks hold the same parameters. They do, except during a round of [local steps](BucketSettings::local_steps).
    pub fn is_between_rounds(&self) -> bool {
        self.rounds.as_ref().is_none_or(Rounds::is_between)
    }

    /// Records activity of the host in the trace. The work of a GPU is asynchronous, so its times are unknown here.
    fn span(&self, name: &'static str, began: Instant, ended: Instant) {
        if trace::is_on() && !self.backend.is_gpu() {
            trace::record(name, began, ended);
        }
    }

    /// Returns the replica.
    ///
    /// # Panics
    /// If the last step [deferred updates](crate::Overlap::Across). Call [`Mirror::settle`] first.
    pub fn replica(&mut self) -> &mut R {
        assert!(!self.backend.has_left(), "the last step left updates: call Mirror::settle first");
        &mut self.replica
    }

    /// Returns the elements of a parameter that this rank updates, and whose optimizer state it holds. The range covers all elements unless the
    /// optimizer [is sharded](BucketSettings::shard_optimizer). It is empty if the parameter is not trained.
    pub fn own(&self, index: usize) -> Range<usize> {
        self.backend.ledger().own(index)
    }

    /// Returns the optimizer and its state of [this rank's own elements](Mirror::own). State on a GPU is copied to the host.
    ///
    /// # Errors
    /// [`TrainError::Replica`] if the state cannot be copied.
    pub fn optimizer(&mut self) -> Result<&Optimizer, TrainError> {
        self.settle()?;
        self.backend.optimizer()
    }

    /// Restores the optimizer state of [this rank's own elements](Mirror::own) after this many steps: [`Optimizer::restore`].
    ///
    /// # Errors
    /// The first error of `write`. [`TrainError::Replica`].
    pub fn restore_optimizer(&mut self, steps: u64, write: Restore<'_>) -> Result<(), TrainError> {
        self.settle()?;
        self.backend.restore_optimizer(steps, write)
    }

    pub(super) fn is_divided(&self) -> bool {
        self.backend.ledger().is_divided()
    }

    /// Returns the optimizer state of all elements and the residuals, for saving. Returns nothing on ranks other than 0. Called by all ranks.
    pub(super) fn moments(&mut self, comm: &mut Communicator) -> Result<Vec<Tensor>, TrainError> {
        self.settle()?;
        let (rank, is_local, mut own) = (comm.rank(), self.rounds.is_some(), Vec::new());
        let differs = self.is_divided() || is_local;
        if rank == 0 || differs {
            let parameters = self.replica.parameters();
            let state = self.backend.optimizer()?.state();
            // Rank 0 saves the names of parameters without elements.
            let state = state.filter(|(.., values)| rank == 0 || !values.is_empty());
            own.extend(state.map(|(name, index, values)| {
                let name = if is_local { of_rank(name, rank) } else { name.to_owned() };
                saved_moment(&parameters[index].name, &name, values.to_vec())
            }));
        }
        if let Some(rounds) = self.rounds.as_mut().filter(|_| rank == 0) {
            let velocities = self.replica.parameters().iter().zip(rounds.velocities());
            own.extend(velocities.map(|(of, values)| saved_moment(&of.name, OUTER_VELOCITY, values.clone())));
        }
        let buckets = self.backend.buckets().filter(|buckets| buckets.keeps_residuals(comm));
        own.extend(buckets.into_iter().flat_map(|buckets| buckets.unsent(comm)));
        if !differs && buckets.is_none() {
            return Ok(own);
        }
        Ok(join(gather(comm, own.into_iter().map(|tensor| (0, tensor)).collect())?))
    }

    /// Returns the [averages](crate::optimizer::Averaged) of all trained parameters, with their indices. Returns none before the first step, or if
    /// the optimizer keeps no averages. Called by all ranks.
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
            if self.is_divided() {
                // Sums bits, because a sum of floating-point numbers would lose the sign of a zero.
                let mut bits = vec![0_u32; self.replica.parameters()[index].count()];
                bits[self.own(index)].copy_from_slice(bytemuck::cast_slice(&values));
                comm.all_reduce(&mut bits, ReduceOp::Sum)?;
                values = bytemuck::cast_vec(bits);
            }
            averages.push((index, values));
        }
        Ok(averages)
    }

    /// Swaps the values of these parameters with these arrays.
    pub(crate) fn exchange(&mut self, arrays: &mut [(usize, Vec<f32>)]) -> Result<(), TrainError> {
        for (index, array) in arrays {
            self.replica.with_values(*index, &mut |values| values.swap_with_slice(array))?;
        }
        Ok(())
    }

    /// Returns the buckets. `None` if gradients are reduced on a GPU, or in memory that ranks share.
    pub fn buckets(&self) -> Option<&Buckets> {
        self.backend.buckets()
    }

    /// Returns the hash of all trained values, which is the same on all ranks.
    ///
    /// # Errors
    /// [`TrainError::Replica`].
    pub fn hash(&mut self) -> Result<u64, TrainError> {
        self.settle()?;
        Ok(compare::Values::of(&mut self.replica)?.trained())
    }
}
