//! The settings of parameter servers, and the settings of a run that are incompatible with them.

use std::fmt;
use std::str::FromStr;

use super::Part;
use unisono::{Error, Rank};
use unisono_train::{Order, Overlap, RandomAccessFeed, Replica, TrainError, Wire};

/// The maximum staleness of a gradient: the number of updates that servers make between the worker's pull and its push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staleness {
    /// The number of updates in this many steps, one per share. With 0, training is synchronous: all workers wait for the end of each step, and
    /// parameters are updated with the mean of its gradients.
    ///
    /// If a worker of an [elastic](super::ParameterServer::elastic) run is lost while it pushes a share, the buckets that have all shares of the step
    /// are updated, and the others wait for the worker that repeats the share. It may compute its gradient with a mixture of updated and other
    /// parameters, so the update of the other buckets may differ from a synchronous one. Later steps are synchronous again.
    Steps(u64),
    /// Unlimited: asynchronous training.
    Unbounded,
}

impl fmt::Display for Staleness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            Self::Unbounded => f.write_str("unbounded"),
        }
    }
}

impl FromStr for Staleness {
    type Err = TrainError;

    fn from_str(text: &str) -> Result<Self, TrainError> {
        if text == "unbounded" {
            return Ok(Self::Unbounded);
        }
        let expected = "expected a number of steps, 0 for synchronous training, or unbounded";
        let unknown = |_| TrainError::Setting(format!("`{text}` is no staleness: {expected}"));
        text.parse().map(Self::Steps).map_err(unknown)
    }
}

/// The settings of a [`ParameterServer`](super::ParameterServer). The same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerSettings {
    /// The number of servers, which are the first ranks. The others are workers, at least one.
    pub servers: usize,
    /// The permitted staleness of gradients.
    pub staleness: Staleness,
    /// Whether a gradient that missed the updates of n steps is applied at 1 / (1 + n) of the learning rate (Zhang et al.,
    /// "Staleness-aware Async-SGD", 2016, section 3).
    pub damps: bool,
}

impl ServerSettings {
    /// Refuses to replace the process of a server.
    ///
    /// # Errors
    /// [`TrainError::ServerLost`].
    #[doc(hidden)]
    pub fn check_joins(self, rank: Rank) -> Result<(), TrainError> {
        if rank >= self.servers {
            return Ok(());
        }
        let why = "it was restarted, and its parameters are lost: start the run again, with --resume";
        Err(TrainError::ServerLost { server: rank, error: Error::Launch(why.to_owned()) })
    }
}

impl<R: Replica, F: RandomAccessFeed<Batch = R::Batch>> Part<R, F> {
    /// Returns why the settings are incompatible with each other, the world or the model, if they are.
    pub(super) fn refusal(&self) -> Option<String> {
        let Self { ranks, replica, feed, settings, layout, .. } = self;
        let ServerSettings { servers, staleness, damps } = self.servers;
        if servers == 0 || servers >= *ranks {
            return Some(format!(
                "{servers} of {ranks} ranks serve: there must be at least one server and one worker"
            ));
        }
        if let Err(why) = settings.optimizer.check() {
            return Some(why);
        }
        let buffer = replica.parameters().iter().find(|parameter| !parameter.is_trained);
        let has_empty = (0..servers).any(|server| layout.of(server).next().is_none());
        let (buckets, rule) = (&settings.buckets, &settings.optimizer.rule);
        let why = if feed.steps().is_none() {
            "needs a feed that knows how many steps an epoch has"
        } else if replica.synchronizes() {
            "lets no batch norm compute over all ranks: workers are at different steps"
        } else if replica.shares_values() {
            "needs separate parameters on each rank, and these ranks share them: use central storage, or do not share them"
        } else if let Some(buffer) = buffer {
            &format!("holds trained parameters alone, and {} is not trained", buffer.name)
        } else if has_empty {
            &format!("needs a bucket for each of {servers} servers: use fewer, or smaller --bucket-bytes")
        } else if settings.clip_norm.is_some() {
            "knows no norm of the whole gradient, to clip it: remove --clip-norm"
        } else if matches!(buckets.wire, Wire::Compressed(_)) {
            &format!("sends gradients as f32, bf16 or f16, and not as {}", buckets.wire)
        } else if buckets.order == Order::Tree {
            "adds the gradients of a worker's passes in turn, so the bits depend on the number of workers: remove --order world-invariant"
        } else if buckets.local_steps.is_some() {
            "averages no parameters: remove --local-steps"
        } else if buckets.shard_optimizer {
            "has the optimizer's state on the servers anyway: remove --shard-optimizer"
        } else if buckets.overlap != Overlap::Auto {
            &format!("receives each bucket during the backward pass: remove --overlap {}", buckets.overlap)
        } else if settings.verify_replicas_every.is_some() {
            "holds the only copy of the parameters: remove --verify-replicas-every"
        } else if settings.straggler_every.is_some() {
            "reports the waits of all workers after each epoch anyway: remove --straggler-every"
        } else if settings.optimizer.is_averaged() {
            "evaluates no average of the parameters: remove --ema"
        } else if staleness != Staleness::Steps(0) && rule.per_share(ranks - servers).is_none() {
            let name = rule.name();
            &format!(
                "updates by single shares with --staleness, and {name} has no form for that: use --staleness 0, sgd or adamw"
            )
        } else if !settings.metrics.is_empty() {
            "measures loss and accuracy alone: remove --metrics"
        } else if damps && staleness == Staleness::Steps(0) {
            "without staleness has none to damp: remove --damp-stale"
        } else {
            return None;
        };
        Some(format!("a parameter server {why}"))
    }
}
