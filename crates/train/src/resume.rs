//! Converts a run's state to a checkpoint and back.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{self, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::arrays::{scatter, scatter_each};
use crate::checkpoint::{
    self, Checkpoint, Loaded, Lowest, OF_RANK, PassedOver, Tensor, moment_name, numbered, of_rank,
};
use crate::compare;
use crate::local::Rounds;
use crate::report::null_is_nan;
use crate::step::OUTER_VELOCITY;
use crate::{Best, Event, LossSums, Mirror, Parameter, Replica, RunSettings, TrainError, agree};
use unisono::{Communicator, Rank};

/// The position of a run, and its description.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The number of steps made.
    pub step: u64,
    /// The epoch, from 1.
    pub epoch: usize,
    /// The number of steps made in this epoch.
    pub step_in_epoch: usize,
    /// The loss sums of this epoch.
    pub tally: LossSums,
    /// The number of ranks.
    pub ranks: usize,
    /// The global batch size: samples per step over all ranks.
    pub global_batch: usize,
    /// The number of updates that the optimizer has made.
    pub updates: u64,
    /// The mean loss of the previous epoch. It is 0 in the first epoch, and NaN if the previous epoch had no target.
    #[serde(deserialize_with = "null_is_nan")]
    pub last_loss: f64,
    /// The best evaluation so far. Checkpoints of older versions have none.
    pub best: Option<Best>,
    /// The number of steps made before the last evaluation that counts for early stopping. Checkpoints of older versions have none, and were saved
    /// after the evaluation of their step.
    pub evaluated: Option<u64>,
    /// The loss of the first step.
    pub first_loss: Option<f64>,
    /// The checkpoint with the lowest training loss. Known only on the rank that saves, and not with early stopping.
    pub lowest: Option<Lowest>,
    /// The factor by which [callbacks](crate::Callback) have multiplied learning rates.
    #[serde(default = "unchanged")]
    pub rate_factor: f64,
    /// The description of the run: arbitrary values of the run's creator.
    pub description: serde_json::Value,
}

impl Progress {
    /// Returns the start of a run.
    pub fn beginning(settings: &RunSettings) -> Self {
        Self {
            epoch: 1,
            global_batch: settings.global_batch,
            evaluated: Some(0),
            rate_factor: unchanged(),
            description: settings.description.clone(),
            ..Self::default()
        }
    }

    /// Counts a step with these sums.
    pub fn count_step(&mut self, tally: LossSums) {
        if self.step == 0 {
            self.first_loss = Some(tally.mean_loss());
        }
        self.step += 1;
        self.step_in_epoch += 1;
        self.tally += tally;
    }

    /// Begins the next epoch, after an epoch with this mean loss.
    pub fn next_epoch(&mut self, loss: f64) {
        self.last_loss = loss;
        self.epoch += 1;
        self.step_in_epoch = 0;
        self.tally = LossSums::default();
    }
}

/// Returns the rate factor of a run without rate changes, which is also the default for checkpoints of older versions.
fn unchanged() -> f64 {
    1.0
}

/// A run to resume.
#[derive(Debug)]
pub struct Resumed {
    /// Its progress.
    pub progress: Progress,
    /// Newer checkpoints that are damaged; only on rank 0.
    pub passed_over: Vec<PassedOver>,
    /// All arrays, on rank 0. If the model is in parts, the ranks of its first replica hold the arrays of their parts.
    arrays: Option<(Vec<Tensor>, Vec<Tensor>)>,
    /// The checkpoint's path, for messages.
    path: String,
    /// The directory that contains the checkpoint; only on rank 0.
    directory: Option<PathBuf>,
}

impl Resumed {
    /// Finds the newest checkpoint in a directory on rank 0, and informs all ranks. Returns `None` if there is none. Called by all ranks.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if there are checkpoints and none is complete.
    pub fn find(comm: &mut Communicator, directory: &Path) -> Result<Option<Self>, TrainError> {
        let found = if comm.rank() == 0 {
            let found = comm.quiet("reading a checkpoint", |_| checkpoint::load_newest(directory));
            found.map_err(TrainError::from)
        } else {
            Ok(None)
        };
        let found = agree(comm, found)?;
        let state =
            |loaded: &Loaded<Progress>| (loaded.checkpoint.state.clone(), loaded.path.display().to_string());
        let Some((progress, path)) = compare::broadcast(comm, &found.as_ref().map(state))? else {
            return Ok(None);
        };
        // The checkpoint may be a symbolic link to another directory.
        let parent =
            |found: &Loaded<Progress>| fs::canonicalize(path::absolute(&found.path).ok()?.parent()?).ok();
        let directory = found.as_ref().and_then(parent);
        let (passed_over, arrays) = found.map_or((Vec::new(), None), |loaded| {
            (loaded.passed_over, Some((loaded.checkpoint.parameters, loaded.checkpoint.optimizer)))
        });
        Ok(Some(Self { progress, passed_over, arrays, path, directory }))
    }

    /// Returns whether the run's checkpoint is in this directory of checkpoints. Only rank 0, which saves, knows it.
    pub fn is_in(&self, directory: &Path) -> bool {
        self.directory.is_some() && self.directory == fs::canonicalize(directory).ok()
    }

    /// Returns the events of the start of a run that resumes.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        let passed_over = self
            .passed_over
            .iter()
            .map(|PassedOver { path, why }| Event::Notice(format!("skipped {}: {why}", path.display())));
        let Progress { step, epoch, .. } = self.progress;
        passed_over.chain([Event::Resumed { step, epoch }])
    }

    /// Checks that the run can continue with this global batch size. Positions in an epoch are counted in steps.
    pub(crate) fn check_batch(&self, global_batch: usize) -> Result<(), TrainError> {
        let Progress { global_batch: before, step_in_epoch, .. } = self.progress;
        if global_batch == before || step_in_epoch == 0 {
            return Ok(());
        }
        Err(self.explain(TrainError::Setting(format!(
            "it was saved after {step_in_epoch} steps of an epoch with a global batch of {before}, and {global_batch} is given: samples \
             would be lost or repeated; resume with a global batch of {before}, or from the end of an epoch"
        ))))
    }

    /// Restores a replica's values. Does nothing on ranks other than 0, because rank 0's values are broadcast.
    ///
    /// # Errors
    /// [`TrainError::OtherRun`] if the checkpoint is of another model.
    pub fn load(&self, replica: &mut impl Replica) -> Result<(), TrainError> {
        let Some((parameters, _)) = &self.arrays else { return Ok(()) };
        load(replica, parameters).map_err(|error| self.explain(error))
    }

    /// Like [`load`], for a replica that may be a [part](Replica::parts) of the model. Distributes the arrays to the parts first. `replicas` are the
    /// ranks that hold the same part. Called by all ranks.
    pub(super) fn load_parts(
        &mut self,
        replicas: &Communicator,
        replica: &mut impl Replica,
    ) -> Result<(), TrainError> {
        let names: Vec<_> = replica.parameters().iter().map(|parameter| parameter.name.clone()).collect();
        if let Some(parts) = replica.parts().filter(|_| replicas.rank() == 0) {
            let is_own = |name: &str| names.iter().any(|own| own == name);
            let is_of_own = |name: &str| name.rsplit_once(':').is_some_and(|(name, _)| is_own(name));
            let (parameters, optimizer) = self.arrays.take().unwrap_or_default();
            let (parameters, unknown) = scatter(parts.comm, parameters, is_own)?;
            let (optimizer, _) = scatter(parts.comm, optimizer, is_of_own)?;
            self.arrays = Some((parameters, optimizer));
            if let Some(extra) = unknown.first() {
                return Err(self.explain(not_here(extra)));
            }
        }
        self.load(replica)
    }

    /// Returns the optimizer state of this name for a parameter. Available on rank 0 only.
    ///
    /// # Errors
    /// [`TrainError::OtherRun`] if the checkpoint has no state of that name and size.
    pub fn moment(&self, parameter: &Parameter, moment: &str) -> Result<&[f32], TrainError> {
        let saved = self.arrays.as_ref().map_or(&[][..], |(_, optimizer)| optimizer);
        let found = find(saved, &moment_name(&parameter.name, moment));
        let sized = found.and_then(|saved| sized(saved, parameter.count()));
        sized.map_err(|error| self.explain(error))
    }

    /// Restores the optimizers of all ranks from rank 0's checkpoint, and drops its arrays. Called by all ranks.
    pub(super) fn restore<R: Replica>(
        &mut self,
        comm: &mut Communicator,
        mirror: &mut Mirror<R>,
    ) -> Result<(), TrainError> {
        let (_, arrays) = self.arrays.take().unwrap_or_default();
        let (rank, is_local) = (comm.rank(), mirror.rounds.is_some());
        let is_own = |name: &str| numbered(name, OF_RANK).is_none_or(|of| is_local && of == rank);
        let restores = mirror.buckets().map(|buckets| buckets.restores(comm));
        let restores = |name: &str| is_own(name) && restores.as_ref().is_none_or(|restores| restores(name));
        let (parts, mut saved) = (own_parts(mirror)?, Vec::new());
        scatter_each(comm, arrays, restores, |mut tensor| {
            if let Some(values) = parts.get(&tensor.name).and_then(|own| tensor.values.get(own.clone())) {
                tensor.values = values.to_vec();
            }
            saved.push(tensor);
        })?;
        let restored = self.restore_own(rank, &saved, mirror);
        agree(comm, restored.map_err(|error| self.explain(error)))?;
        if let Some(buckets) = mirror.buckets() {
            buckets.restore_unsent(comm, &saved);
        }
        Ok(())
    }

    /// Restores this rank's optimizer and the velocities of its outer steps. `saved` has only [this rank's parts](own_parts).
    fn restore_own<R: Replica>(
        &self,
        rank: Rank,
        saved: &[Tensor],
        mirror: &mut Mirror<R>,
    ) -> Result<(), TrainError> {
        let parameters = mirror.replica().parameters().to_vec();
        mirror.restore_optimizer(self.progress.updates, &mut |moment, index, values| {
            let Parameter { name, is_trained, .. } = &parameters[index];
            let count = if *is_trained { parameters[index].count() } else { 0 };
            // If the saved run had fewer ranks, the state of rank 0's optimizer is used.
            let of_rank = find(saved, &moment_name(name, &of_rank(moment, rank)));
            let of_rank = of_rank.ok().filter(|found| sized(found, count).is_ok());
            let found = of_rank.map_or_else(|| find(saved, &moment_name(name, moment)), Ok)?;
            values.copy_from_slice(sized(found, count)?);
            Ok(())
        })?;
        mirror.steps = self.progress.step;
        for (velocity, of) in mirror.rounds.iter_mut().flat_map(Rounds::velocities).zip(&parameters) {
            if let Ok(saved) = find(saved, &moment_name(&of.name, OUTER_VELOCITY)) {
                velocity.copy_from_slice(&saved.values);
            }
        }
        Ok(())
    }

    fn explain(&self, error: TrainError) -> TrainError {
        match error {
            TrainError::Setting(why) => TrainError::OtherRun { checkpoint: self.path.clone(), why },
            error => error,
        }
    }
}

/// Returns the elements of each array of optimizer state that this rank holds, by the array's name. Empty if it holds all of them.
fn own_parts<R: Replica>(mirror: &mut Mirror<R>) -> Result<HashMap<String, Range<usize>>, TrainError> {
    if !mirror.is_divided() {
        return Ok(HashMap::new());
    }
    let parameters = mirror.replica().parameters().to_vec();
    let own: Vec<_> = (0..parameters.len()).map(|index| mirror.own(index)).collect();
    let state = mirror.optimizer()?.state();
    let part = |(moment, index, _): (_, usize, _)| {
        (moment_name(&parameters[index].name, moment), own[index].clone())
    };
    Ok(state.map(part).collect())
}

/// Restores a replica's values from these arrays, by name.
///
/// # Errors
/// [`TrainError::Setting`] if one is missing, or has another shape.
pub fn load(replica: &mut impl Replica, arrays: &[Tensor]) -> Result<(), TrainError> {
    for index in 0..replica.parameters().len() {
        let parameter = &replica.parameters()[index];
        let saved = find(arrays, &parameter.name)?;
        if saved.shape != parameter.shape {
            let why =
                format!("{} has shape {:?} there, and {:?} here", saved.name, saved.shape, parameter.shape);
            return Err(TrainError::Setting(why));
        }
        replica.with_values(index, &mut |values| values.copy_from_slice(&saved.values))?;
    }
    if let Some(extra) =
        arrays.iter().find(|array| replica.parameters().iter().all(|here| here.name != array.name))
    {
        return Err(not_here(&extra.name));
    }
    Ok(())
}

fn not_here(name: &str) -> TrainError {
    TrainError::Setting(format!("there is a parameter called {name}, and none here"))
}

/// Returns the values of an array, or of a part of it, if the whole array has `expected` many.
fn sized(saved: &Tensor, expected: usize) -> Result<&[f32], TrainError> {
    let found: usize = saved.shape.iter().product();
    if found == expected {
        return Ok(&saved.values);
    }
    Err(TrainError::Setting(format!("{} has {found} values there, and {expected} here", saved.name)))
}

fn find<'a>(arrays: &'a [Tensor], name: &str) -> Result<&'a Tensor, TrainError> {
    let found = arrays.iter().find(|array| array.name == name);
    found.ok_or_else(|| TrainError::Setting(format!("there is nothing called {name}")))
}

/// Returns the arrays to save. Copies them, because the replica may change afterwards.
pub(super) fn snapshot<R: Replica>(
    mirror: &mut Mirror<R>,
    progress: &Progress,
    optimizer: Vec<Tensor>,
) -> Result<Checkpoint<Progress>, TrainError> {
    let mut parameters = Vec::new();
    let replica = mirror.replica();
    for index in 0..replica.parameters().len() {
        let (Parameter { name, shape, .. }, mut copy) = (replica.parameters()[index].clone(), Vec::new());
        replica.with_values(index, &mut |values| copy = values.to_vec())?;
        parameters.push(Tensor { name, shape, values: copy });
    }
    let state = Progress { updates: mirror.optimizer()?.steps(), ..progress.clone() };
    Ok(Checkpoint { step: progress.step, state, parameters, optimizer })
}
