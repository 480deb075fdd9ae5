//! What a run of a model of ours is told, and what suits a model where it is told nothing.

use std::path::PathBuf;
use std::sync::Arc;

use super::buckets::{BucketSettings, Order, Overlap, Wire};
use super::device::{self, DeviceKind};
use super::model::{self, ModelKind};
use super::optimizer::{OptimizerKind, OptimizerSettings};
use super::rate::{Rate, Schedule};
use super::run::{Checkpoints, RunSettings};
use crate::compare::agree;
use crate::error::TrainError;
use crate::feed::Shares;
use crate::places::Places;
use crate::replica::Replica;
use crate::resume::Resumed;
use crate::sampled::Sampled;
use crate::stop::Stop;
use crate::trainer::Trainer;
use unisono::Communicator;
use unisono_data::{Augmentation, Batch, Dataset, Depth, Source, Threads};

mod check;
mod identity;
mod needs;

pub(super) use check::Figure;

/// Everything that decides a run, but for the number of ranks.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the data is.
    pub source: Source,
    /// What is trained on it.
    pub model: ModelKind,
    /// How many outputs each hidden layer of the MLP has, if not as many as usual.
    pub hidden: Option<Vec<usize>>,
    /// How often the training samples are gone through.
    pub epochs: usize,
    /// How many samples a rank takes in a pass.
    pub batch_size: usize,
    /// How many samples all ranks take together in a step, in as many passes as it needs. Without it, as many as one pass
    /// of each rank takes; in a run that is resumed, as many as before.
    pub global_batch: Option<usize>,
    /// How parameters are updated.
    pub optimizer: OptimizerSettings,
    /// The learning rate after warm-up, for a global batch of `reference_batch`; see
    /// [`Settings::scaled_rate`].
    pub learning_rate: f64,
    /// The global batch that the learning rate is for.
    pub reference_batch: usize,
    /// How the learning rate goes on after warm-up.
    pub schedule: Falling,
    /// The share of all steps in which the learning rate rises.
    pub warm_up: f64,
    /// The greatest norm that the mean gradient may have.
    pub clip_norm: Option<f64>,
    /// Where all randomness comes from.
    pub seed: u64,
    /// How many characters a sample of a text has.
    pub context: usize,
    /// Whether images in files are varied.
    pub augments: bool,
    /// How many threads make batches.
    pub input_threads: Threads,
    /// How many steps' batches lie ready.
    pub prefetch: Depth,
    /// Where the model computes.
    pub device: DeviceKind,
    /// The format in which gradients are sent.
    pub wire: Wire,
    /// Whether gradients travel beside the backward pass.
    pub overlap: Overlap,
    /// How many bytes of gradients travel together.
    pub bucket_bytes: usize,
    /// Whether the bits depend on how many ranks share the work: not, if the gradients of this many equal parts of each
    /// step are added up in a tree. It is a power of two, and a multiple of the number of ranks.
    pub world_invariant: Option<usize>,
    /// After how many steps, again and again, all replicas are held against each other.
    pub verify_replicas_every: Option<u64>,
    /// After how many steps, again and again, the ranks' times are compared.
    pub straggler_every: Option<u64>,
    /// Where and when checkpoints are saved.
    pub checkpoints: Option<Checkpoints>,
    /// Whether the run goes on from the newest of them, if there is one.
    pub resumes: bool,
    /// Asks the run to save and end, on whichever ranks it is set.
    pub stop: Stop,
    /// Where files for TensorBoard are written.
    pub log_directory: Option<PathBuf>,
    /// Where a trace of all ranks is written.
    pub trace: Option<PathBuf>,
}

/// How images are varied, if they are: little enough that a digit stays what it is.
const AUGMENTATION: Augmentation = Augmentation { shift_pixels: 2, rotation_degrees: 10, mirror: false };

/// How the learning rate goes on after warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Falling {
    /// It does not fall.
    Constant,
    /// It is multiplied by a factor after every so many epochs.
    Step {
        /// How many.
        epochs: usize,
        /// What it is multiplied by.
        factor: f64,
    },
    /// It falls to zero along half a cosine.
    Cosine,
}

impl Settings {
    /// What was found to suit this model, on two ranks.
    pub fn new(source: Source, model: ModelKind) -> Self {
        let for_mlp = Self {
            source,
            model,
            hidden: None,
            epochs: 10,
            batch_size: 64,
            global_batch: None,
            optimizer: OptimizerSettings { weight_decay: 5e-4, ..OptimizerSettings::new(OptimizerKind::Sgd) },
            learning_rate: 0.1,
            reference_batch: 128,
            schedule: Falling::Cosine,
            warm_up: 0.05,
            clip_norm: None,
            seed: 0,
            context: unisono_data::Options::default().context,
            augments: false,
            input_threads: Threads::Auto,
            prefetch: Depth::Auto,
            device: DeviceKind::Auto,
            wire: Wire::F32,
            overlap: Overlap::Auto,
            bucket_bytes: BucketSettings::default().bucket_bytes,
            world_invariant: None,
            verify_replicas_every: None,
            straggler_every: None,
            checkpoints: None,
            resumes: false,
            stop: Stop::default(),
            log_directory: None,
            trace: None,
        };
        match model {
            ModelKind::Mlp => for_mlp,
            ModelKind::Cnn => Self {
                epochs: 8,
                batch_size: 32,
                learning_rate: 0.05,
                reference_batch: 64,
                warm_up: 0.1,
                ..for_mlp
            },
            ModelKind::Transformer => Self {
                epochs: 2,
                batch_size: 8,
                optimizer: OptimizerSettings {
                    weight_decay: 0.1,
                    ..OptimizerSettings::new(OptimizerKind::AdamW)
                },
                learning_rate: 3e-3,
                reference_batch: 16,
                ..for_mlp
            },
        }
    }

    /// The model that learns from this source where none is named.
    pub fn default_model(source: &Source) -> ModelKind {
        match source {
            Source::Text(_) => ModelKind::Transformer,
            _ => ModelKind::Mlp,
        }
    }

    /// The learning rate for this global batch.
    ///
    /// A larger batch has a less noisy gradient and bears a larger step: for SGD in proportion (Goyal et
    /// al., "Accurate, large minibatch SGD", 2017, section 2.1), for AdamW with the square root (Malladi et
    /// al., "On the SDEs and scaling rules for adaptive gradient algorithms", 2022, section 4). The same
    /// global batch has the same rate at any number of ranks.
    pub fn scaled_rate(&self, global_batch: usize) -> f64 {
        let factor = global_batch as f64 / self.reference_batch as f64;
        match self.optimizer.kind {
            OptimizerKind::Sgd => self.learning_rate * factor,
            OptimizerKind::AdamW => self.learning_rate * factor.sqrt(),
        }
    }

    /// Loads the data and builds the model, on every rank; then rank 0's parameters are everybody's, or those of a
    /// checkpoint. Called by all ranks with the same settings. If it fails on one rank it fails on all.
    ///
    /// # Errors
    /// [`TrainError`] names what is wrong with the settings, the data or the model; on ranks where nothing
    /// is wrong, [`TrainError::Elsewhere`] names the lowest rank where something is.
    pub fn trainer<'a>(
        &self,
        comm: &'a mut Communicator,
    ) -> Result<Trainer<'a, impl Replica<Batch = Batch> + use<>, Sampled>, TrainError> {
        agree(comm, self.check())?;
        self.places().check(comm)?;
        let mut resumed = match &self.checkpoints {
            Some(kept) if self.resumes => Resumed::find(comm, &kept.directory)?,
            _ => None,
        };
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let before = resumed.as_ref().map(|resumed| resumed.progress.global_batch);
        let global_batch = self.global_batch.or(before).unwrap_or(self.batch_size.saturating_mul(ranks));
        let refused = device::refusal(&self.buckets(global_batch), self.trace.is_some());
        let (device, computes) = self.device.choose(comm, refused)?;
        agree(comm, self.check_choice(comm.choice(), &device, &computes))?;
        let (dataset, description) = self.prepare(comm, global_batch, resumed.as_mut())?;
        if device.is_cpu() {
            self.needs(ranks, global_batch, &dataset).check(comm)?;
        }
        let replica =
            model::classifier(self.model, self.hidden.as_deref(), &dataset.kind, self.seed, &device);
        let replica = agree(comm, replica.map_err(TrainError::from))?;
        let shares = Shares {
            rank,
            ranks,
            global_batch,
            micro_batch: self.batch_size,
            fixed_passes: self.world_invariant,
        };
        let steps = shares.steps(dataset.train.len());
        let settings =
            RunSettings { computes: Some(computes), description, ..self.run_settings(global_batch, steps) };
        let feed = Sampled::new(dataset, self.seed, shares, self.input_threads, self.prefetch);
        Trainer::new(comm, replica, feed, settings, resumed)
    }

    fn places(&self) -> Places<'_> {
        Places {
            checkpoints: self.checkpoints.as_ref(),
            resumes: self.resumes,
            log_directory: self.log_directory.as_deref(),
            trace: self.trace.as_deref(),
        }
    }

    /// The data set, as these settings want it.
    ///
    /// # Errors
    /// [`TrainError::Data`].
    pub fn dataset(&self) -> Result<Dataset, TrainError> {
        let options = unisono_data::Options {
            seed: self.seed,
            context: self.context,
            augmentation: self.augments.then_some(AUGMENTATION),
            ..unisono_data::Options::default()
        };
        Ok(unisono_data::load(&self.source, &options)?)
    }

    /// The data set, and what a checkpoint says of the run; if it goes on from one, that one is of this run. Called by all
    /// ranks.
    fn prepare(
        &self,
        comm: &mut Communicator,
        global_batch: usize,
        resumed: Option<&mut Resumed>,
    ) -> Result<(Arc<Dataset>, serde_json::Value), TrainError> {
        agree(comm, self.check_world(comm.ranks()))?;
        self.needs_of_data().check(comm)?;
        let dataset = agree(
            comm,
            self.dataset().and_then(|dataset| self.check_data(dataset, global_batch, comm.ranks())),
        )?;
        // Rank 0 saves, and what it finds is found once.
        let keeps = self.checkpoints.is_some() && comm.rank() == 0;
        let fingerprint = keeps.then(|| dataset.fingerprint()).transpose();
        let fingerprint = agree(comm, fingerprint.map_err(TrainError::from))?;
        let description = self.description(&dataset, fingerprint);
        if let Some(resumed) = resumed {
            agree(comm, self.compare(&description, global_batch, resumed))?;
            // What is saved from now on says all that this version knows of the run.
            resumed.progress.description = description.clone();
        }
        Ok((Arc::new(dataset), description))
    }

    fn run_settings(&self, global_batch: usize, steps: usize) -> RunSettings {
        let schedule = match self.schedule {
            Falling::Constant => Schedule::Constant,
            Falling::Step { epochs, factor } => {
                Schedule::Step { every: epochs.saturating_mul(steps) as u64, factor }
            }
            Falling::Cosine => Schedule::Cosine,
        };
        let all_steps = steps.saturating_mul(self.epochs) as u64;
        let rate = Rate::new(schedule, self.scaled_rate(global_batch), self.warm_up, all_steps);
        RunSettings {
            buckets: self.buckets(global_batch),
            clip_norm: self.clip_norm,
            verify_replicas_every: self.verify_replicas_every,
            straggler_every: self.straggler_every,
            checkpoints: self.checkpoints.clone(),
            stop: self.stop.clone(),
            log_directory: self.log_directory.clone(),
            trace: self.trace.clone(),
            ..RunSettings::new(self.epochs, global_batch, self.optimizer, rate)
        }
    }

    fn buckets(&self, global_batch: usize) -> BucketSettings {
        BucketSettings {
            bucket_bytes: self.bucket_bytes,
            wire: self.wire,
            overlap: self.overlap,
            order: if self.world_invariant.is_some() { Order::Tree } else { Order::Free },
            // The power of two below: f16 then holds the mean over a global batch of what is summed.
            f16_scale: (global_batch as f32).log2().floor().exp2().recip(),
            ..BucketSettings::default()
        }
    }
}

#[cfg(test)]
mod tests;
