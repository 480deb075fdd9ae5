//! The trainer's loop: ranks that run out of data, replicas that differ, runs that fail and are resumed.

use std::path::Path;
use std::time::Duration;

use unisono::Communicator;
use unisono_data::{DataError, Pipeline};
use unisono_train::checkpoint::{Store, Tensor, When, load_newest};
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{
    AdamW, Batches, BucketSettings, Checkpoints, EarlyStopping, EpochReport, Event, Feed, OptimizerSettings,
    Order, OutOfData, Progress, Resumed, RunSettings, Shares, Steps, Stop, Stream, Summary, TrainError,
    Trainer,
};

use super::line::{BIAS, Line, Point, points, sgd};
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Returns a stream of points with this many batches on each rank.
pub(crate) fn stream(rank: usize, batches: &[usize]) -> Stream<Vec<Point>> {
    let count = batches[rank];
    Stream::new(1, move |_| Ok(Pipeline::of((0..count).map(move |at| points(40 + at)[at..].to_vec()))))
}

pub(crate) fn run_settings(epochs: usize, out_of_data: OutOfData) -> RunSettings {
    let rate = Rate::new(Schedule::Cosine, 0.1, 0.1, 40);
    RunSettings { out_of_data, verify_replicas_every: Some(1), ..RunSettings::new(epochs, 12, sgd(), rate) }
}

fn ranks_that_run_out_of_data_follow_the_policy() {
    let run = |policy: OutOfData, batches: &'static [usize]| {
        let results = unisono::threads(batches.len(), |mut comm| {
            let feed = stream(comm.rank(), batches);
            let trainer = Trainer::new(&mut comm, Line::new(), feed, run_settings(2, policy), None).unwrap();
            let (mut steps, mut notices) = (0, Vec::new());
            let ended = trainer.run(|event| match event {
                Event::Step(_) => steps += 1,
                Event::Notice(notice) if notice.contains("more data") => notices.push(notice),
                _ => {}
            });
            (ended.map(|summary| summary.parameters_hash).map_err(|error| error.to_string()), steps, notices)
        });
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
        results.into_iter().next().unwrap()
    };
    let (ended, steps, notices) = run(OutOfData::Stop, &[5, 3, 4]);
    assert!(ended.is_ok());
    assert_eq!(steps, 2 * 3);
    assert_eq!(notices[0], "epoch 1 ends after step 3: 1 of 3 ranks have no more data");

    let (ended, steps, _) = run(OutOfData::JoinWithZeros, &[5, 3, 4]);
    assert!(ended.is_ok());
    assert_eq!(steps, 2 * 5);

    let (ended, steps, _) = run(OutOfData::Error, &[5, 3, 4]);
    assert!(ended.unwrap_err().starts_with("1 of 3 ranks have no more data for step 4 of epoch 1"));
    assert_eq!(steps, 3);

    let (ended, steps, notices) = run(OutOfData::Error, &[4, 4, 4]);
    assert!(ended.is_ok() && notices.is_empty());
    assert_eq!(steps, 2 * 4);
}

/// Points that are divided among ranks by their index, in the same batches for any number of ranks.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    shares: Shares,
    /// The number of steps after which the feed simulates a failure of the machine.
    steps_left: usize,
    /// The number of evaluations after which held-out samples cannot be read.
    evaluations_left: usize,
}

const SAMPLES: usize = 100;

impl Feed for Shared {
    type Batch = Vec<Point>;

    fn steps(&self) -> Option<usize> {
        Some(self.shares.steps(SAMPLES))
    }

    fn samples(&self, steps: usize) -> Option<usize> {
        Some(SAMPLES.min(steps * self.shares.global_batch))
    }

    fn epoch(&mut self, epoch: usize, skipped: usize) -> Result<Steps<Vec<Point>>, DataError> {
        let (shares, steps, left) = (self.shares, self.shares.steps(SAMPLES), self.steps_left);
        self.steps_left = left.saturating_sub(steps - skipped);
        Ok(Box::new((skipped..steps).zip(0..).map(move |(step, made)| {
            if made == left {
                return Err(DataError::other("the machine fails"));
            }
            let start = step * shares.global_batch;
            let mut all = points(SAMPLES);
            all.rotate_left(epoch);
            let batch = &all[start..SAMPLES.min(start + shares.global_batch)];
            let batches = shares.passes(batch.len()).into_iter();
            Ok(batches.map(|pass| (!pass.is_empty()).then(|| batch[pass].to_vec())).collect())
        })))
    }

    fn held_out(&self) -> usize {
        5
    }

    fn evaluation(&mut self, range: std::ops::Range<usize>) -> Result<Batches<Vec<Point>>, DataError> {
        let left = self.evaluations_left.checked_sub(1).ok_or_else(|| DataError::other("the disk fails"))?;
        self.evaluations_left = left;
        Ok(Box::new(range.map(|batch| Ok(points(7 * (batch + 1))))))
    }
}

/// Returns the points of this rank, in steps of this many points over all ranks.
pub(crate) fn shared(comm: &Communicator, global_batch: usize) -> Shared {
    let shares = Shares {
        rank: comm.rank(),
        ranks: comm.ranks(),
        global_batch,
        micro_batch: 3,
        fixed_passes: Some(4),
    };
    Shared { shares, steps_left: usize::MAX, evaluations_left: usize::MAX }
}

/// Makes a run of three epochs of nine steps, which fails after this many steps. Returns the error, if any.
pub(crate) fn saved_run(
    comm: &mut Communicator,
    directory: &Path,
    resumes: bool,
    fails_after: usize,
) -> Result<(Summary, Vec<EpochReport>), String> {
    stoppable_run(comm, Some(directory), resumes, fails_after, |_, _| ())
}

/// Like [`saved_run`]. Calls `after_step` after every step with the number of completed steps and the handle that stops the run.
pub(crate) fn stoppable_run(
    comm: &mut Communicator,
    directory: Option<&Path>,
    resumes: bool,
    fails_after: usize,
    after_step: impl Fn(usize, &Stop),
) -> Result<(Summary, Vec<EpochReport>), String> {
    let buckets = BucketSettings { order: Order::Tree, ..BucketSettings::default() };
    run_with(comm, buckets, directory, resumes, fails_after, after_step)
}

/// Like [`stoppable_run`], with these buckets.
pub(crate) fn run_with(
    comm: &mut Communicator,
    buckets: BucketSettings,
    directory: Option<&Path>,
    resumes: bool,
    fails_after: usize,
    after_step: impl Fn(usize, &Stop),
) -> Result<(Summary, Vec<EpochReport>), String> {
    let resumed = directory.filter(|_| resumes).and_then(|place| Resumed::find(comm, place).unwrap());
    let checkpoints = directory.map(|directory| Checkpoints {
        directory: directory.to_path_buf(),
        keep: 2,
        overwrites: false,
        when: When { every_steps: Some(4), every: None },
    });
    let stop = Stop::default();
    let settings =
        RunSettings { checkpoints, stop: stop.clone(), buckets, ..run_settings(3, OutOfData::Error) };
    let mut reports = Vec::new();
    let feed = Shared { steps_left: fails_after, ..shared(comm, 12) };
    let trainer =
        Trainer::new(comm, Line::new(), feed, settings, resumed).map_err(|error| error.to_string())?;
    let mut steps = 0;
    let summary = trainer.run(|event| match event {
        Event::Epoch(report) => reports.push(report),
        Event::Step(_) => {
            steps += 1;
            after_step(steps, &stop);
        }
        _ => {}
    });
    summary.map(|summary| (summary, reports)).map_err(|error| error.to_string())
}

fn failed_run_resumes_bit_for_bit_on_another_number_of_ranks() {
    let undisturbed = tempfile::tempdir().unwrap();
    let whole =
        unisono::threads(2, |mut comm| saved_run(&mut comm, undisturbed.path(), false, usize::MAX).unwrap());
    let (expected, reports) = &whole[0];
    for fails_after in [1, 4, 11, 18, 26] {
        for ranks in [1, 2, 4] {
            let directory = tempfile::tempdir().unwrap();
            let failed = unisono::threads(2, |mut comm| {
                comm.set_timeout(Duration::from_secs(20));
                saved_run(&mut comm, directory.path(), true, fails_after).unwrap_err()
            });
            assert!(failed.iter().any(|why| why.contains("the machine fails")), "{failed:?}");
            let resumed = unisono::threads(ranks, |mut comm| {
                saved_run(&mut comm, directory.path(), true, usize::MAX).unwrap()
            });
            for (summary, later) in resumed {
                assert_eq!(
                    summary.parameters_hash, expected.parameters_hash,
                    "after {fails_after}, on {ranks} ranks"
                );
                let figures = |report: &EpochReport| (report.epoch, report.loss, report.test_loss);
                let expected = &reports[reports.len() - later.len()..];
                assert!(later.iter().map(figures).eq(expected.iter().map(figures)), "{later:?} {expected:?}");
            }
        }
    }
}

fn checkpoint_of_another_model_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    unisono::threads(1, |mut comm| saved_run(&mut comm, directory.path(), false, usize::MAX).unwrap());
    let messages = unisono::threads(2, |mut comm| {
        let resumed = Resumed::find(&mut comm, directory.path()).unwrap();
        let mut line = Line::new();
        line.parameters[BIAS].name = "offset".into();
        let feed = stream(comm.rank(), &[1, 1]);
        let settings = run_settings(1, OutOfData::Error);
        Trainer::new(&mut comm, line, feed, settings, resumed).unwrap_err().to_string()
    });
    assert!(messages[0].contains("there is nothing called offset"), "{messages:?}");
    assert!(messages[1].contains("rank 0 reports an error"), "{messages:?}");
}

fn optimizer_state_that_is_missing_or_of_another_size_is_refused() {
    let [saved, larger] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    unisono::threads(1, |mut comm| saved_run(&mut comm, saved.path(), false, usize::MAX).unwrap());
    let mut checkpoint = load_newest::<Progress>(saved.path()).unwrap().unwrap().checkpoint;
    for Tensor { shape, values, .. } in &mut checkpoint.optimizer {
        (*shape, *values) = (vec![2], vec![0.0; 2]);
    }
    Store::open(larger.path(), 1).unwrap().save(checkpoint).unwrap();
    let adamw = || OptimizerSettings::new(AdamW::default());
    let usual = || run_settings(1, OutOfData::Error).optimizer;
    for (directory, optimizer, expected) in [
        (&saved, adamw(), "there is nothing called weight:mean"),
        (&larger, usual(), "weight:velocity has 2 values there, and 3 here"),
    ] {
        let messages = unisono::threads(2, |mut comm| {
            let resumed = Resumed::find(&mut comm, directory.path()).unwrap();
            let feed = stream(comm.rank(), &[1, 1]);
            let settings = RunSettings { optimizer: optimizer.clone(), ..run_settings(1, OutOfData::Error) };
            Trainer::new(&mut comm, Line::new(), feed, settings, resumed).unwrap_err().to_string()
        });
        assert!(messages[0].contains(expected), "{messages:?}");
        assert!(messages[1].contains("rank 0 reports an error"), "{messages:?}");
    }
}

fn unreadable_held_out_samples_are_a_failure_of_the_run_on_all_ranks() {
    let errors = unisono::threads(2, |mut comm| {
        let evaluations_left = if comm.rank() == 1 { 1 } else { usize::MAX };
        let feed = Shared { evaluations_left, ..shared(&comm, 12) };
        let settings = run_settings(2, OutOfData::Error);
        let trainer = Trainer::new(&mut comm, Line::new(), feed, settings, None).unwrap();
        let error = trainer.run(|_| ()).unwrap_err();
        assert!(!error.is_bad_input(), "{error}");
        error.to_string()
    });
    let expected = "rank 1 failed in epoch 2, step 9: the disk fails";
    assert!(errors[1] == expected && errors[0].ends_with(expected), "{errors:?}");
}

fn run_that_resumes_from_another_directory_is_refused_in_an_occupied_one() {
    let (from, occupied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for place in [from.path(), occupied.path()] {
        unisono::threads(1, |mut comm| saved_run(&mut comm, place, false, usize::MAX).unwrap());
    }
    unisono::threads(1, |mut comm| {
        let resumed = Resumed::find(&mut comm, from.path()).unwrap();
        let checkpoints = Some(Checkpoints::new(occupied.path()));
        let settings = RunSettings { checkpoints, ..run_settings(4, OutOfData::Error) };
        let feed = shared(&comm, 12);
        let refused = Trainer::new(&mut comm, Line::new(), feed, settings, resumed).unwrap_err();
        assert!(matches!(refused, TrainError::Occupied { .. }), "{refused}");
    });
}

fn invalid_settings_of_a_run_are_refused_on_all_ranks() {
    let usual = || run_settings(1, OutOfData::Error);
    let stopping = |patience, min_delta| {
        let early_stopping = Some(EarlyStopping { patience, min_delta });
        RunSettings { early_stopping, ..usual() }
    };
    let directory = tempfile::tempdir().unwrap();
    let saving = |keep, every_steps| {
        let when = When { every_steps: Some(every_steps), every: None };
        RunSettings {
            checkpoints: Some(Checkpoints { keep, when, ..Checkpoints::new(directory.path()) }),
            ..usual()
        }
    };
    for (settings, expected) in [
        (RunSettings { verify_replicas_every: Some(0), ..usual() }, "verify_replicas_every is `0`"),
        (RunSettings { straggler_every: Some(0), ..usual() }, "straggler_every is `0`"),
        (RunSettings { evaluate_every: Some(0), ..usual() }, "evaluate_every is `0`"),
        (RunSettings { clip_norm: Some(f64::NAN), ..usual() }, "the norm to clip to is `NaN`"),
        (RunSettings { clip_norm: Some(-1.0), ..usual() }, "the norm to clip to is `-1`"),
        (stopping(0, 0.0), "patience is `0`"),
        (stopping(1, f64::NAN), "min_delta is `NaN`"),
        (stopping(1, -0.5), "min_delta is `-0.5`"),
        (saving(0, 1), "keep is `0`"),
        (saving(1, 0), "every_steps is `0`"),
    ] {
        let refused = unisono::threads(2, |mut comm| {
            let feed = shared(&comm, 12);
            Trainer::new(&mut comm, Line::new(), feed, settings.clone(), None).unwrap_err().to_string()
        });
        assert!(refused[0].contains(expected), "{refused:?}");
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        invalid_settings_of_a_run_are_refused_on_all_ranks,
        unreadable_held_out_samples_are_a_failure_of_the_run_on_all_ranks,
        run_that_resumes_from_another_directory_is_refused_in_an_occupied_one,
        ranks_that_run_out_of_data_follow_the_policy,
        failed_run_resumes_bit_for_bit_on_another_number_of_ranks,
        checkpoint_of_another_model_is_refused,
        optimizer_state_that_is_missing_or_of_another_size_is_refused,
    ]
}
