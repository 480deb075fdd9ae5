//! The mirrored trainer: every rank holds the same model, takes its share of every batch, and averages
//! gradients with the others. It knows no transport: it sees a [`Communicator`].
//!
//! [`Trainer::run`] reads top to bottom in the order in which training happens.
//!
//! The tensor operations under it use as many threads as `RAYON_NUM_THREADS` says, and all cores where it
//! says nothing. Ranks that share a node must share its cores: see [`crate::config::share_cores`].

use std::time::{Duration, Instant};

use crate::data::{Dataset, Split};
use crate::{Call, Communicator, DType, Ran, ReduceOp};

use super::optimizer::Optimizer;
use super::rate::Rate;
use super::replica::{Replica, Tally};
use super::{Settings, TrainError};

/// What happens while a model is being trained; the same on every rank.
#[derive(Debug, Clone)]
pub enum Event {
    /// A step was made.
    Step {
        /// The epoch, from 1.
        epoch: usize,
        /// The step in the epoch, from 1.
        step: usize,
        /// How many steps an epoch has.
        steps: usize,
        /// The mean loss of the global batch.
        loss: f64,
    },
    /// An epoch is over.
    Epoch(EpochReport),
}

/// How an epoch went, over all ranks.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "cli", derive(serde::Serialize))]
pub struct EpochReport {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The mean training loss over the epoch, in nats.
    pub loss: f64,
    /// The mean loss on the held-out samples after the epoch, in nats.
    pub test_loss: f64,
    /// The share of held-out targets that the model puts first, 0 to 1.
    pub test_accuracy: f64,
    /// Training samples a second, all ranks together.
    pub samples_per_s: f64,
    /// The share of the training time that ranks spent in all-reduces with nothing else to do, waiting for
    /// slower ranks included.
    pub exposed_communication_percent: f64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "cli", derive(serde::Serialize))]
pub struct Summary {
    /// The last epoch.
    #[cfg_attr(feature = "cli", serde(flatten))]
    pub last: EpochReport,
    /// How many ranks trained.
    pub ranks: usize,
    /// A hash of the final parameters' bytes, in hexadecimal. It is the same on all ranks.
    pub parameters_hash: String,
}

/// One rank's part of a training run.
#[derive(Debug)]
pub struct Trainer<'a> {
    comm: &'a mut Communicator,
    settings: &'a Settings,
    dataset: Dataset,
    replica: Replica,
    optimizer: Optimizer,
    rate: Rate,
}

impl<'a> Trainer<'a> {
    /// Loads the data and builds the model, on every rank; then rank 0's parameters are everybody's.
    ///
    /// Called by all ranks with the same settings. If it fails on one rank it fails on all.
    ///
    /// # Errors
    /// [`TrainError`] names what is wrong with the settings, the data or the model; on ranks where nothing
    /// is wrong, [`TrainError::Elsewhere`] names the lowest rank where something is.
    pub fn new(comm: &'a mut Communicator, settings: &'a Settings) -> Result<Self, TrainError> {
        let prepared = settings.prepare(comm.ranks());
        let (dataset, mut replica) = agree(comm, prepared)?;
        comm.broadcast(replica.values_mut(), 0)?;
        replica.load()?;

        let steps = dataset.train.len().div_ceil(settings.global_batch(comm.ranks())) * settings.epochs;
        let rate = Rate::new(settings.scaled_rate(comm.ranks()), settings.warm_up, steps);
        let optimizer = Optimizer::new(settings.optimizer, settings.weight_decay, replica.layout());
        Ok(Self { comm, settings, dataset, replica, optimizer, rate })
    }

    /// How many parameters the model has.
    pub fn parameter_count(&self) -> usize {
        self.replica.values().len()
    }

    /// How many samples there are to train on.
    pub fn sample_count(&self) -> usize {
        self.dataset.train.len()
    }

    /// The highest learning rate of the run: the settings' rate, scaled to the global batch.
    pub fn peak_rate(&self) -> f64 {
        self.rate.peak()
    }

    /// What will carry out the all-reduce of the gradients, and why.
    pub fn all_reduce(&mut self) -> Ran {
        let count = self.parameter_count() + Tally::COUNT;
        self.comm.selection(&Call::all_reduce(DType::F32, ReduceOp::Sum, count))
    }

    /// Trains to the end, and tells of every step and epoch.
    ///
    /// # Errors
    /// [`TrainError`] of a failing rank or model, and if the loss is not a number any more, or the replicas
    /// are not the same at the end.
    pub fn run(mut self, mut tell: impl FnMut(Event)) -> Result<Summary, TrainError> {
        // Other ranks of the node read it where it lies.
        let mut bucket = self.comm.alloc(self.replica.values().len() + Tally::COUNT)?;
        let mut last = None;
        for epoch in 1..=self.settings.epochs {
            let report = self.epoch(epoch, &mut bucket, &mut tell)?;
            tell(Event::Epoch(report.clone()));
            last = Some(report);
        }
        let parameters_hash = self.common_hash()?;
        let last = last.expect("there is at least one epoch");
        Ok(Summary { last, ranks: self.comm.ranks(), parameters_hash })
    }

    /// Goes once through the training samples, then measures on the held-out ones.
    fn epoch(
        &mut self,
        epoch: usize,
        bucket: &mut [f32],
        tell: &mut impl FnMut(Event),
    ) -> Result<EpochReport, TrainError> {
        let Settings { seed, .. } = *self.settings;
        let order = self.dataset.train.order(seed, epoch as u64);
        let shift = self.dataset.train.shift(seed, epoch as u64);
        let batches = order.chunks(self.settings.global_batch(self.comm.ranks()));
        let steps = batches.len();
        let started = Instant::now();
        let mut communication = Duration::ZERO;
        let mut total = Tally::default();
        for (step, batch) in (1..).zip(batches) {
            let (tally, exposed) = self.step(batch, shift, bucket)?;
            if !tally.loss.is_finite() {
                return Err(TrainError::Diverged { epoch, step, loss: tally.mean_loss() });
            }
            communication += exposed;
            total += tally;
            tell(Event::Step { epoch, step, steps, loss: tally.mean_loss() });
        }
        let seconds = started.elapsed().as_secs_f64();
        let exposed = self.mean_over_ranks(communication.as_secs_f64() / seconds)?;
        let test = self.evaluate()?;
        Ok(EpochReport {
            epoch,
            loss: total.mean_loss(),
            test_loss: test.mean_loss(),
            test_accuracy: test.accuracy(),
            samples_per_s: order.len() as f64 / seconds,
            exposed_communication_percent: 100.0 * exposed,
        })
    }

    /// The mirrored step. Every rank adds up the gradients of its share of the batch, all-reduces the sums
    /// together with the number of samples in them, and makes the same update: so the mean is weighted,
    /// whatever the shares are.
    fn step(
        &mut self,
        batch: &[usize],
        shift: usize,
        bucket: &mut [f32],
    ) -> Result<(Tally, Duration), TrainError> {
        let share = &batch[self.comm.own_part(batch.len())];
        self.replica.add_up_gradients(&self.dataset.train, share, shift, bucket)?;

        let began = Instant::now();
        self.comm.all_reduce(bucket, ReduceOp::Sum)?;
        let exposed = began.elapsed();

        let (gradients, tally) = bucket.split_at_mut(self.replica.values().len());
        let tally = Tally::from_slice(tally);
        let scale = 1.0 / tally.targets as f32;
        gradients.iter_mut().for_each(|gradient| *gradient *= scale);
        self.optimizer.update(self.replica.values_mut(), gradients, self.rate.next());
        self.replica.load()?;
        Ok((tally, exposed))
    }

    /// Measures on the held-out samples, each rank on its own part of them.
    fn evaluate(&mut self) -> Result<Tally, TrainError> {
        let held_out: &Split = &self.dataset.test;
        let own: Vec<_> = self.comm.own_part(held_out.len()).collect();
        let mut tally = Tally::default();
        for samples in own.chunks(self.settings.batch_size.max(EVALUATION_BATCH)) {
            tally += self.replica.evaluate(held_out, samples)?;
        }
        let mut sums = tally.as_array();
        self.comm.all_reduce(&mut sums, ReduceOp::Sum)?;
        Ok(Tally::from_array(sums))
    }

    fn mean_over_ranks(&mut self, value: f64) -> Result<f64, TrainError> {
        let mut mean = [value];
        self.comm.all_reduce(&mut mean, ReduceOp::Mean)?;
        Ok(mean[0])
    }

    /// The hash of the parameters, which must be the same on all ranks.
    fn common_hash(&mut self) -> Result<String, TrainError> {
        let hash = xxhash_rust::xxh3::xxh3_64(bytemuck::cast_slice(self.replica.values()));
        let (mut least, mut most) = ([hash], [hash]);
        self.comm.all_reduce(&mut least, ReduceOp::Min)?;
        self.comm.all_reduce(&mut most, ReduceOp::Max)?;
        if least == most {
            Ok(format!("{hash:016x}"))
        } else {
            Err(TrainError::ReplicasDiffer { rank: self.comm.rank(), hash })
        }
    }
}

/// How many samples are evaluated at a time, at least.
const EVALUATION_BATCH: usize = 64;

/// Lets all ranks know whether each of them succeeded.
fn agree<T>(comm: &mut Communicator, result: Result<T, TrainError>) -> Result<T, TrainError> {
    let mut lowest = [if result.is_err() { comm.rank() as u64 } else { u64::MAX }];
    comm.all_reduce(&mut lowest, ReduceOp::Min)?;
    match lowest[0] {
        u64::MAX => result,
        rank if rank == comm.rank() as u64 => result,
        rank => Err(TrainError::Elsewhere { rank: rank as usize }),
    }
}
