//! A run's state as a checkpoint, and a checkpoint as the state of a run.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checkpoint::{self, Checkpoint, Loaded, PassedOver, Tensor};
use super::replica::{Replica, Tally};
use crate::compare;
use crate::compare::agree;
use crate::error::TrainError;
use crate::run::RunSettings;
use crate::step::Mirror;
use unisono::Communicator;

/// Where a run is, and what it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// How many steps were made.
    pub step: u64,
    /// The epoch, from 1.
    pub epoch: usize,
    /// How many steps of this epoch were made.
    pub step_in_epoch: usize,
    /// How many samples of this epoch all ranks have seen, if the feed knows.
    pub sample_in_epoch: Option<usize>,
    /// What was added up in this epoch.
    pub tally: Tally,
    /// How many ranks there were.
    pub ranks: usize,
    /// How many samples all ranks take together in a step.
    pub global_batch: usize,
    /// The number of updates that the optimizer has made.
    pub updates: u64,
    /// The mean loss of the epoch before, 0 in the first.
    pub last_loss: f64,
    /// What the run is: whatever whoever began it finds worth knowing.
    pub description: serde_json::Value,
}

impl Progress {
    /// Nothing yet.
    pub(super) fn beginning(settings: &RunSettings) -> Self {
        Self {
            step: 0,
            epoch: 1,
            step_in_epoch: 0,
            sample_in_epoch: None,
            tally: Tally::default(),
            ranks: 0,
            global_batch: settings.global_batch,
            updates: 0,
            last_loss: 0.0,
            description: settings.description.clone(),
        }
    }
}

/// A run that goes on.
#[derive(Debug)]
pub struct Resumed {
    /// Where it was.
    pub progress: Progress,
    /// Newer checkpoints that are broken; known to rank 0 alone.
    pub passed_over: Vec<PassedOver>,
    /// The arrays, on rank 0.
    arrays: Option<(Vec<Tensor>, Vec<Tensor>)>,
    /// For messages.
    path: String,
}

impl Resumed {
    /// Looks for the newest checkpoint in a directory, on rank 0, and tells all ranks; nothing if there is none. Called by
    /// all ranks.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if there are checkpoints and none is whole.
    pub fn find(comm: &mut Communicator, directory: &Path) -> Result<Option<Self>, TrainError> {
        let found = if comm.rank() == 0 {
            checkpoint::load_newest::<Progress>(directory).map_err(TrainError::from)
        } else {
            Ok(None)
        };
        let found = agree(comm, found)?;
        let text = found.as_ref().map(|Loaded { checkpoint, path, .. }| {
            serde_json::to_string(&(&checkpoint.state, path.display().to_string())).expect("a state is plain")
        });
        let text = compare::broadcast(comm, text.unwrap_or_default())?;
        if text.is_empty() {
            return Ok(None);
        }
        let (progress, path) = serde_json::from_str(&text).expect("rank 0 has just written it");
        let (passed_over, arrays) = found.map_or((Vec::new(), None), |loaded| {
            (loaded.passed_over, Some((loaded.checkpoint.parameters, loaded.checkpoint.optimizer)))
        });
        Ok(Some(Self { progress, passed_over, arrays, path }))
    }

    /// Gives a replica the values that were saved; on ranks other than 0 nothing happens, since rank 0's are broadcast.
    ///
    /// # Errors
    /// [`TrainError::OtherRun`] if they are of another model.
    pub fn load(&self, replica: &mut impl Replica) -> Result<(), TrainError> {
        let Some((parameters, _)) = &self.arrays else { return Ok(()) };
        load(replica, parameters).map_err(|error| self.explain(error))
    }

    /// Gives the optimizers of all ranks what rank 0's checkpoint remembers, and lets go of its arrays. Called by all ranks.
    ///
    /// # Errors
    /// [`TrainError::OtherRun`] if it is of another optimizer; the collectives' errors.
    pub(super) fn restore<R: Replica>(
        &mut self,
        comm: &mut Communicator,
        mirror: &mut Mirror<R>,
    ) -> Result<(), TrainError> {
        let names: Vec<_> =
            mirror.replica().parameters().iter().map(|parameter| parameter.name.clone()).collect();
        let places = mirror.optimizer()?.state().map(|(moment, index, values)| (moment, index, values.len()));
        let mut state: Vec<(&str, usize, Vec<f32>)> =
            places.map(|(moment, index, count)| (moment, index, vec![0.0; count])).collect();
        let filled = match self.arrays.take() {
            Some((_, saved)) => fill(&mut state, &saved, &names).map_err(|error| self.explain(error)),
            None => Ok(()),
        };
        agree(comm, filled)?;
        for (_, _, values) in &mut state {
            comm.broadcast(values, 0)?;
        }
        let state = state.iter().map(|(moment, index, values)| (*moment, *index, &values[..]));
        mirror.restore_optimizer(self.progress.updates, state)
    }

    fn explain(&self, error: TrainError) -> TrainError {
        match error {
            TrainError::Setting(why) => TrainError::OtherRun { checkpoint: self.path.clone(), why },
            error => error,
        }
    }
}

/// Gives a replica the values of these arrays, found by their names.
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
        return Err(TrainError::Setting(format!(
            "there is a parameter called {}, and none here",
            extra.name
        )));
    }
    Ok(())
}

fn fill(state: &mut [(&str, usize, Vec<f32>)], saved: &[Tensor], names: &[String]) -> Result<(), TrainError> {
    for (moment, index, values) in state {
        let saved = find(saved, &moment_name(&names[*index], moment))?;
        if saved.values.len() != values.len() {
            let (found, expected) = (saved.values.len(), values.len());
            return Err(TrainError::Setting(format!(
                "{} has {found} values there, and {expected} here",
                saved.name
            )));
        }
        values.copy_from_slice(&saved.values);
    }
    Ok(())
}

fn find<'a>(arrays: &'a [Tensor], name: &str) -> Result<&'a Tensor, TrainError> {
    let found = arrays.iter().find(|array| array.name == name);
    found.ok_or_else(|| TrainError::Setting(format!("there is nothing called {name}")))
}

/// The name under which what an optimizer remembers of a parameter is saved.
fn moment_name(parameter: &str, moment: &str) -> String {
    format!("{parameter}:{moment}")
}

/// All that is to be saved. Copies it: what follows may change the replica.
///
/// # Errors
/// [`TrainError::Replica`].
pub(super) fn snapshot<R: Replica>(
    mirror: &mut Mirror<R>,
    progress: &Progress,
) -> Result<Checkpoint<Progress>, TrainError> {
    let mut parameters = Vec::new();
    let replica = mirror.replica();
    for index in 0..replica.parameters().len() {
        let (name, shape) =
            (replica.parameters()[index].name.clone(), replica.parameters()[index].shape.clone());
        let mut copy = Vec::new();
        replica.with_values(index, &mut |values| copy = values.to_vec())?;
        parameters.push(Tensor { name, shape, values: copy });
    }
    let names: Vec<_> = parameters.iter().map(|tensor| tensor.name.clone()).collect();
    let optimizer = mirror.optimizer()?;
    let updates = optimizer.steps();
    let moments = optimizer.state().map(|(moment, index, values)| Tensor {
        name: moment_name(&names[index], moment),
        shape: vec![values.len()],
        values: values.to_vec(),
    });
    let optimizer = moments.collect();
    let state = Progress { updates, ..progress.clone() };
    Ok(Checkpoint { step: progress.step, state, parameters, optimizer })
}
