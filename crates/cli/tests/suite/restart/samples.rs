//! Tests the samples that a run reads if it is killed during epochs and resumes on other numbers of ranks.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use unisono_data::{Batch, DataError, Dataset, Depth, Inputs, Kind, Schema, StoredSamples, Threads};
use unisono_train::checkpoint::When;
use unisono_train::metrics::VisitOutputs;
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{
    Batches, Checkpoints, Feed, Gradients, LossSums, OptimizerSettings, Parameter, Replica, ReplicaError,
    Resumed, RunSettings, Sampled, Sgd, Shares, Steps, TrainError, Trainer,
};

use crate::watch::{Guarded, descendants, kill, newest, until};
use unisono_testing::launch::{mpirun, this_program};
use unisono_testing::suite;

const SAMPLES: usize = 1003;
const GLOBAL_BATCH: usize = 24;
const STEPS: usize = SAMPLES.div_ceil(GLOBAL_BATCH);
const EPOCHS: usize = 3;
/// The duration of a pass, long enough for a kill during an epoch.
const PASS: Duration = Duration::from_millis(8);

/// The feed under test, and a record of every sample of a step.
struct Noting {
    feed: Sampled,
    notes: Arc<File>,
}

impl Feed for Noting {
    type Batch = Batch;

    fn steps(&self) -> Option<usize> {
        self.feed.steps()
    }

    fn samples(&self, steps: usize) -> Option<usize> {
        self.feed.samples(steps)
    }

    fn epoch(&mut self, epoch: usize, skipped: usize) -> Result<Steps<Batch>, DataError> {
        let notes = Arc::clone(&self.notes);
        let steps = (skipped..).zip(self.feed.epoch(epoch, skipped)?);
        Ok(Box::new(steps.map(move |(step, passes)| {
            let passes = passes?;
            let samples: Vec<usize> = passes.iter().flatten().flat_map(indices).collect();
            // A single write, so that a killed process leaves whole lines.
            let line = serde_json::json!([epoch, step, samples]).to_string() + "\n";
            (&*notes).write_all(line.as_bytes()).expect("notes are written");
            Ok(passes)
        })))
    }

    fn held_out(&self) -> usize {
        self.feed.held_out()
    }

    fn evaluation(&mut self, range: Range<usize>) -> Result<Batches<Batch>, DataError> {
        self.feed.evaluation(range)
    }
}

/// Returns the indices of a batch's samples. Each sample's only feature is its index.
fn indices(batch: &Batch) -> Vec<usize> {
    match &batch.inputs {
        Inputs::Pixels(values) => values.iter().map(|&value| value as usize).collect(),
        Inputs::Tokens(_) => panic!("rows have values"),
    }
}

/// A model of one number, which converges to the mean of all samples.
struct Mean {
    parameters: [Parameter; 1],
    value: [f32; 1],
}

impl Replica for Mean {
    type Batch = Batch;

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn pass(&mut self, batch: &Batch, gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        thread::sleep(PASS);
        gradients.record_loss(self.evaluate(batch, None)?);
        let slope = indices(batch).iter().map(|&index| 2.0 * (self.value[0] - index as f32 / 1e3)).sum();
        gradients.put(0, &mut |gradient, fill| fill.write(gradient, &[slope]));
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch, _: Option<VisitOutputs<'_>>) -> Result<LossSums, ReplicaError> {
        let errors = indices(batch).into_iter().map(|index| f64::from(self.value[0]) - index as f64 / 1e3);
        Ok(LossSums {
            targets: batch.samples as f64,
            loss: errors.map(|error| error * error).sum(),
            correct: 0.0,
        })
    }

    fn with_values(&mut self, _: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        visit(&mut self.value);
        Ok(())
    }
}

/// Runs one rank: resumes from the checkpoints in the directory, and records its samples there.
pub(crate) fn play(_: &str) -> ExitCode {
    let directory = std::env::args().nth(1).expect("a directory");
    match train(Path::new(&directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn train(directory: &Path) -> Result<(), TrainError> {
    let mut comm = unisono::init()?;
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let values =
        |count: usize| StoredSamples::table((0..count).map(|at| at as f32).collect(), vec![0; count]);
    let kind = Kind::Table { features: 1, classes: 1 };
    let dataset =
        Arc::new(Dataset { kind, train: values(SAMPLES), test: values(50), schema: Schema::default() });
    let shares = Shares { rank, ranks, global_batch: GLOBAL_BATCH, micro_batch: 100, fixed_passes: None };
    let notes =
        File::options().create(true).append(true).open(directory.join(format!("notes-{ranks}-{rank}")));
    let feed = Noting {
        feed: Sampled::new(dataset, 3, shares, Threads::Auto, Depth::Auto),
        notes: Arc::new(notes.expect("notes can be written")),
    };
    let checkpoints = directory.join("checkpoints");
    let resumed = Resumed::find(&mut comm, &checkpoints)?;
    let when = When { every_steps: Some(3), every: None };
    let rate = Rate::new(Schedule::Constant, 0.01, 0.0, (EPOCHS * STEPS) as u64);
    let settings = RunSettings {
        checkpoints: Some(Checkpoints { directory: checkpoints, keep: 2, overwrites: false, when }),
        ..RunSettings::new(EPOCHS, GLOBAL_BATCH, OptimizerSettings::new(Sgd::default()), rate)
    };
    let replica = Mean { parameters: [Parameter::new("mean", [1])], value: [0.0] };
    Trainer::new(&mut comm, replica, feed, settings, resumed)?.run(|_| ()).map(drop)
}

/// Returns the samples of each step for a run of this many ranks, by the number of the step in the whole run.
fn noted(directory: &Path, ranks: usize) -> BTreeMap<usize, Vec<usize>> {
    let mut steps: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for rank in 0..ranks {
        let notes = fs::read_to_string(directory.join(format!("notes-{ranks}-{rank}"))).unwrap();
        for line in notes.lines() {
            let (epoch, step, samples): (usize, usize, Vec<usize>) = serde_json::from_str(line).unwrap();
            steps.entry((epoch - 1) * STEPS + step).or_default().extend(samples);
        }
    }
    steps
}

pub(crate) fn every_sample_is_read_once_per_epoch_on_4_2_and_3_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = directory.path().join("checkpoints");
    // Killed during the first epoch, during the second, and never.
    let runs = [(4, Some(STEPS / 3)), (2, Some(STEPS + STEPS / 3)), (3, None)];
    for (ranks, killed_after) in runs {
        let mut command = mpirun(ranks, &this_program());
        suite::play(&mut command, "restart", "note-samples").arg(directory.path()).stdin(Stdio::null());
        if killed_after.is_some() {
            command.stderr(Stdio::null());
        }
        let mut run = Guarded(command.spawn().unwrap());
        if let Some(step) = killed_after {
            let name = format!("step-{step:010}");
            until("so many steps", Duration::from_secs(60), || {
                newest(&checkpoints).filter(|newest| *newest >= name)
            });
            let rank = descendants(run.0.id()).pop().expect("the last rank runs");
            kill("KILL", rank);
        }
        let status = run.ended(Duration::from_secs(60));
        assert_eq!(status.success(), killed_after.is_none(), "{ranks} ranks: {status}");
    }
    let mut seen = BTreeMap::new();
    for (ranks, _) in runs {
        let steps = noted(directory.path(), ranks);
        let first = *steps.keys().next().expect("every run makes steps");
        // Samples after the last checkpoint are discarded, and read again.
        let forgotten = seen.split_off(&first);
        assert!(ranks == 4 || !forgotten.is_empty(), "a run was killed when all that it had seen was saved");
        assert!(ranks == 4 || !first.is_multiple_of(STEPS), "{ranks} ranks go on in the midst of an epoch");
        seen.extend(steps);
    }
    assert!(seen.keys().copied().eq(0..EPOCHS * STEPS), "every step is made: {:?}", seen.keys());
    for epoch in 0..EPOCHS {
        let steps = seen.range(epoch * STEPS..(epoch + 1) * STEPS);
        let mut samples: Vec<usize> = steps.flat_map(|(_, samples)| samples.clone()).collect();
        samples.sort_unstable();
        assert!(samples.into_iter().eq(0..SAMPLES), "epoch {}", epoch + 1);
    }
}
