//! The backend that reduces gradients and updates parameters: the host, or the device of a replica.

use std::fmt;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use crate::buckets::Ledger;
use crate::gradients::Values;
use crate::local::Rounds;
use crate::optimizer::{Optimizer, Restore};
use crate::{
    BucketSettings, Buckets, Gradients, OptimizerSettings, Order, Overlap, Parameter, Pass, ReplicaError,
    Sums, TrainError, Wire,
};
use unisono::{Communicator, trace};

mod host;

/// The factors of an update of all parameters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Update {
    /// The factor of summed gradients.
    pub scale: f32,
    /// The learning rate.
    pub rate: f32,
}

/// The times of one rank over some steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Waiting for the input pipeline.
    pub input: Duration,
    /// Forward and backward passes.
    pub compute: Duration,
    /// All-reduces that overlapped computation.
    pub hidden: Duration,
    /// All-reduces that the rank waited for.
    pub exposed: Duration,
    /// Clipping and the update.
    pub update: Duration,
}

impl AddAssign for Times {
    fn add_assign(&mut self, other: Self) {
        self.input += other.input;
        self.compute += other.compute;
        self.hidden += other.hidden;
        self.exposed += other.exposed;
        self.update += other.update;
    }
}

/// The operations of a data-parallel step on gradients and parameters, in the order in which the step calls them.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Returns the number of passes that this rank makes in a step, if it has micro-batches for this many. `has_samples` returns whether it has
    /// samples for the pass with this number.
    fn passes(
        &mut self,
        _: &mut Communicator,
        passes: usize,
        _has_samples: &dyn Fn(usize) -> bool,
    ) -> Result<usize, TrainError> {
        Ok(passes)
    }

    /// Runs a pass, in which `run` fills the buckets with gradients. Returns the indices of parameters without a gradient.
    fn pass(&mut self, comm: &mut Communicator, pass: Pass, run: Run<'_>) -> Result<Vec<usize>, TrainError>;

    /// Waits until the passes are computed.
    fn wait_for_passes(&self) -> Result<(), TrainError> {
        Ok(())
    }

    /// Waits for the sums over all ranks other than gradients, and returns them.
    fn sums(&mut self) -> Result<Sums, TrainError>;

    /// Waits for the gradient of a parameter, summed over all ranks.
    fn complete(&mut self, comm: &mut Communicator, index: usize) -> Result<(), TrainError>;

    /// Returns the sum of the squares of a completed gradient's elements.
    fn square_sum(&mut self, index: usize) -> Result<f64, TrainError>;

    /// Keeps the compressed gradients that a step without an update has sent.
    fn keep_residuals(&mut self) -> Result<(), TrainError> {
        Ok(())
    }

    /// Counts an update before [`Backend::update`] makes it. A rank without an update to make counts it too.
    fn begin_update(&mut self);

    /// Updates all parameters, bucket by bucket as gradients arrive. It may defer some updates to the next pass or to [`Backend::settle`].
    fn update(&mut self, comm: &mut Communicator, values: Values<'_>, by: Update) -> Result<(), TrainError> {
        let order = self.ledger().order.clone();
        order.into_iter().try_for_each(|bucket| self.update_bucket(comm, values, bucket, by))
    }

    /// Updates the parameters of a bucket, or this rank's part of them.
    fn update_bucket(
        &mut self,
        comm: &mut Communicator,
        values: Values<'_>,
        bucket: usize,
        by: Update,
    ) -> Result<(), TrainError> {
        for index in self.ledger().plan.members[bucket].clone() {
            self.complete(comm, index)?;
            let began = Instant::now();
            self.update_parameter(values, index, by)?;
            if trace::is_on() && !self.is_gpu() {
                trace::record(self.ledger().parameters[index].name.clone(), began, Instant::now());
            }
        }
        Ok(())
    }

    /// Updates a parameter, or this rank's part of it, with its completed gradient.
    fn update_parameter(&mut self, values: Values<'_>, index: usize, by: Update) -> Result<(), TrainError>;

    /// Returns whether any update is deferred.
    fn has_left(&self) -> bool {
        false
    }

    /// Makes all deferred updates.
    fn settle(&mut self, _: Values<'_>) -> Result<(), TrainError> {
        Ok(())
    }

    /// Makes the outer step of all parameters at the end of a round of local steps. Called by all ranks.
    fn average(&mut self, _: &mut Communicator, _: Values<'_>, _: &mut Rounds) -> Result<(), TrainError> {
        unreachable!("a device that does not average parameters refuses local steps")
    }

    /// Ends a step: waits for all buckets, used or not, and for the updates that are not deferred.
    fn finish(&mut self, comm: &mut Communicator, values: Values<'_>) -> Result<(), TrainError>;

    /// Splits the time of the passes, and the rest of the time of the step, by activity.
    fn times(&self, passes: Duration, rest: Duration) -> Times;

    /// Returns the record of gradients that the passes of the step have put into the buckets.
    fn ledger(&self) -> &Ledger;

    /// Returns the buckets, if they are in this rank's memory on the host.
    fn buckets(&self) -> Option<&Buckets> {
        None
    }

    /// Returns the optimizer, with its state on the host.
    fn optimizer(&mut self) -> Result<&Optimizer, TrainError>;

    /// Restores the optimizer's state after this many steps: [`Optimizer::restore`].
    fn restore_optimizer(&mut self, steps: u64, write: Restore<'_>) -> Result<(), TrainError>;

    /// Returns whether this is a GPU.
    fn is_gpu(&self) -> bool {
        false
    }
}

/// Runs a pass, and reports its gradients.
pub type Run<'a> = &'a mut dyn FnMut(&mut dyn Gradients) -> Result<(), ReplicaError>;

/// Checks that an optimizer suits these settings of buckets on the host.
pub(super) fn check_on_host(
    optimizer: &OptimizerSettings,
    settings: &BucketSettings,
) -> Result<(), TrainError> {
    let refused = match settings {
        BucketSettings { shard_optimizer: true, .. } => needs_whole(optimizer, "--shard-optimizer"),
        BucketSettings { local_steps: Some(_), .. } => keeps_average(optimizer, "--local-steps"),
        _ => None,
    };
    refused.map_or(Ok(()), |why| Err(TrainError::Setting(why)))
}

/// Returns the backend on the host for a replica with these parameters. `clips` is true if gradients are clipped, which requires all of them before
/// the update. `brings_values` is [`Replica::brings_values`](crate::Replica::brings_values). Called by all ranks.
pub(super) fn on_host(
    comm: &mut Communicator,
    parameters: &[Parameter],
    optimizer: OptimizerSettings,
    settings: &BucketSettings,
    (clips, brings_values): (bool, bool),
) -> Result<Box<dyn Backend>, TrainError> {
    let mut buckets = Buckets::new(comm, parameters, settings)?;
    if clips {
        buckets.sum_whole();
    }
    // A single bucket is both the first and the last to be needed.
    let has_several = buckets.len() > 1 && comm.ranks() > 1;
    let may_be_across = settings.overlap == Overlap::Across && settings.local_steps.is_none() && !clips;
    Ok(Box::new(host::Host {
        is_across: may_be_across && has_several && brings_values,
        optimizer: optimizer_of(optimizer, buckets.ledger())?,
        late: host::Late::new(parameters.len()),
        buckets,
        steps: 0,
    }))
}

/// Returns why an optimizer cannot update parts of parameters, or `None` if it can. `what` is the feature that divides parameters.
pub fn needs_whole(optimizer: &OptimizerSettings, what: &str) -> Option<String> {
    let rule = &optimizer.rule;
    rule.needs_whole().then(|| {
        format!(
            "{} needs the norms of whole parameters, and with {what} a rank updates parts of them: use another optimizer, or do not \
             divide the update",
            rule.name()
        )
    })
}

/// Returns why an optimizer cannot average parameters, or `None` if it can. `what` is a feature that leaves no identical replica on every rank.
pub fn keeps_average(optimizer: &OptimizerSettings, what: &str) -> Option<String> {
    optimizer.is_averaged().then(|| {
        format!(
            "{what} has no copy of the model on each rank that is the same on all, to average: remove --ema"
        )
    })
}

/// Returns an optimizer for the elements that this rank updates.
///
/// # Errors
/// If there is not enough memory for its state.
pub fn optimizer_of(settings: OptimizerSettings, ledger: &Ledger) -> unisono::Result<Optimizer> {
    let factors = settings.factors.clone();
    let parameters = ledger.parameters.iter().enumerate();
    let described =
        parameters.map(|(index, found)| (ledger.own(index).len(), factors(&found.name, &found.shape)));
    Optimizer::new(settings, described)
}

/// Returns the first of these settings that a GPU does not support, if any.
pub fn refusal(buckets: &BucketSettings) -> Option<String> {
    let what = match buckets {
        BucketSettings { order: Order::Tree, .. } => "the order of additions depends on the number of ranks",
        BucketSettings { wire: wire @ (Wire::Bf16 | Wire::F16 | Wire::Compressed(_)), .. } => {
            &format!("gradients are sent as f32, not as {wire}")
        }
        BucketSettings { shard_optimizer: true, .. } => {
            "every rank holds the whole optimizer state, so --shard-optimizer needs --device cpu"
        }
        BucketSettings { local_steps: Some(_), .. } => {
            "gradients are averaged, and not parameters, so --local-steps needs --device cpu"
        }
        BucketSettings { overlap: Overlap::Across, .. } => {
            "all parameters are updated before the next forward pass, so --overlap across needs --device cpu"
        }
        BucketSettings { overlap: Overlap::InTurn, .. } => {
            "gradients are sent during the backward pass, not in turn"
        }
        _ => return None,
    };
    Some(format!("on a GPU {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_a_gpu_does_not_support_are_named() {
        let usual = BucketSettings::default;
        let refused = |settings| refusal(&settings).unwrap();
        assert_eq!(refusal(&usual()), None);
        assert_eq!(refusal(&BucketSettings { overlap: Overlap::Beside, ..usual() }), None);
        assert!(refused(BucketSettings { order: Order::Tree, ..usual() }).contains("number of ranks"));
        assert!(refused(BucketSettings { wire: Wire::F16, ..usual() }).contains("not as f16"));
        assert!(refused(BucketSettings { overlap: Overlap::Across, ..usual() }).contains("across"));
        assert!(refused(BucketSettings { overlap: Overlap::InTurn, ..usual() }).contains("in turn"));
        let sharded = refused(BucketSettings { shard_optimizer: true, ..usual() });
        assert!(sharded.contains("--shard-optimizer needs --device cpu"), "{sharded}");
    }
}
