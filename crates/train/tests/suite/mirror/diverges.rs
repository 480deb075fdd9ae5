//! Runs that diverge, the checkpoints that they leave, and the description of a run in its checkpoints.

use std::path::Path;

use unisono::Communicator;
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::checkpoint::{self, When, load_newest};
use unisono_train::{
    AdamW, BucketBytes, BucketSettings, Checkpoints, Event, OptimizerSettings, OutOfData, Overlap, Progress,
    Resumed, RunSettings, Stop, Summary, TrainError, Trainer,
};

use super::line::{COUNTER, Line};
use super::ranks::Odd;
use super::trainer::{run_settings, saved_run, shared, stream};

/// Returns settings that save every given number of steps, and keep the newest checkpoint.
fn saving(directory: &Path, every: u64, epochs: usize) -> RunSettings {
    let when = When { every_steps: Some(every), every: None };
    let checkpoints = Checkpoints { directory: directory.to_owned(), keep: 1, overwrites: false, when };
    RunSettings { checkpoints: Some(checkpoints), ..run_settings(epochs, OutOfData::Error) }
}

/// Makes a run over streams of this many batches on each of two ranks, which resumes from the last checkpoint. In each pass (counted from 1), `factor`
/// multiplies the gradient of the bias, and the rank is added to a buffer.
fn run(
    settings: &RunSettings,
    batches: usize,
    factor: fn(usize, usize) -> f32,
    after_step: impl Fn(u64, &Stop) + Sync,
) -> Vec<Result<Summary, TrainError>> {
    let directory = &settings.checkpoints.as_ref().expect("the run saves").directory;
    unisono::threads(2, |mut comm: Communicator| {
        let resumed = Resumed::find(&mut comm, directory)?;
        let (rank, feed) = (comm.rank(), stream(comm.rank(), &[batches; 2]));
        let settings = RunSettings { stop: Stop::default(), ..settings.clone() };
        let (mut step, stop) = (0, settings.stop.clone());
        let mut spoiled = Odd::new(Line::new(), None, |pass, line: &mut Line| {
            line.values[COUNTER][0] += rank as f32;
            line.factor = factor(rank, pass);
        });
        spoiled.brings_values = true;
        let trainer = Trainer::new(&mut comm, spoiled, feed, settings, resumed)?;
        trainer.run(|event| {
            if let Event::Step(_) = event {
                step += 1;
                after_step(step, &stop);
            }
        })
    })
}

fn diverged_run_names_the_parameter_and_keeps_its_checkpoints() {
    fn nan(rank: usize, pass: usize) -> f32 {
        if (rank, pass) == (1, 6) { f32::NAN } else { 1.0 }
    }
    fn infinite(rank: usize, pass: usize) -> f32 {
        if (rank, pass) == (1, 6) { f32::INFINITY } else { 1.0 }
    }
    fn huge(rank: usize, pass: usize) -> f32 {
        if (rank, pass) == (1, 6) { 1e36 } else { 1.0 }
    }
    let plain = |directory: &Path| saving(directory, 1, 1);
    let adamw = |directory: &Path| RunSettings {
        optimizer: OptimizerSettings::new(AdamW::default()),
        ..plain(directory)
    };
    let sharded = |directory: &Path| RunSettings {
        buckets: BucketSettings { shard_optimizer: true, ..BucketSettings::default() },
        ..plain(directory)
    };
    let clipped = |directory: &Path| RunSettings { clip_norm: Some(1.0), ..plain(directory) };
    type Settings<'a> = &'a dyn Fn(&Path) -> RunSettings;
    let all: [fn(usize, usize) -> f32; 3] = [nan, infinite, huge];
    let cases = [(&plain as Settings<'_>, &all[..]), (&adamw, &all), (&sharded, &all), (&clipped, &all[..2])];
    for (number, (settings, factors)) in cases.into_iter().enumerate() {
        for factor in factors {
            let directory = tempfile::tempdir().unwrap();
            let ended = run(&settings(directory.path()), 9, *factor, |_, _| ());
            let why: Vec<_> = ended.into_iter().map(|ended| ended.unwrap_err()).collect();
            let is_named = |error: &&TrainError| matches!(error, TrainError::NotFinite { parameter, step: 6, .. } if parameter == "bias");
            // Only the owner of a part detects it, and informs the others.
            let expected = if number == 2 { 1 } else { 2 };
            assert_eq!(why.iter().filter(is_named).count(), expected, "case {number}: {why:?}");
            assert!(why.iter().all(|error| error.to_string().contains("bias")), "case {number}: {why:?}");
            let newest = load_newest::<Progress>(directory.path()).unwrap().unwrap();
            assert_eq!(newest.checkpoint.step, 5, "case {number}");
        }
    }
}

/// The next step makes the update.
fn deferred_update_that_diverges_is_named_with_its_own_step() {
    let directory = tempfile::tempdir().unwrap();
    let buckets = BucketSettings {
        overlap: Overlap::Across,
        first_bucket_bytes: 1,
        bucket_bytes: BucketBytes::Fixed(1),
        ..BucketSettings::default()
    };
    // A save would make the deferred updates before the next step.
    let settings = RunSettings { buckets, ..saving(directory.path(), 100, 1) };
    let factor = |rank, pass| if (rank, pass) == (1, 6) { f32::NAN } else { 1.0 };
    for ended in run(&settings, 9, factor, |_, _| ()) {
        let error = ended.unwrap_err();
        let is_named =
            matches!(&error, TrainError::NotFinite { parameter, step: 6, .. } if parameter == "bias");
        assert!(is_named, "{error}");
    }
}

/// Returns the steps of the checkpoints in a directory.
fn saved_steps(directory: &Path) -> Vec<u64> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut steps: Vec<_> =
        names.filter_map(|name| name.to_str()?.strip_prefix("step-")?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

fn run_that_diverges_to_finite_values_keeps_its_best_checkpoint() {
    let factor = |_, pass| if pass == 6 { 1e12 } else { 1.0 };
    for is_resumed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let settings = saving(directory.path(), 1, 1);
        if is_resumed {
            let stops = |step, stop: &Stop| {
                if step == 7 {
                    stop.ask();
                }
            };
            let stopped = run(&settings, 9, factor, stops);
            assert!(stopped.iter().flatten().all(|ended| ended.stopped.unwrap().step == 8), "{stopped:?}");
        }
        let factor = if is_resumed { |_, _| 1.0 } else { factor };
        let ended = run(&settings, 9, factor, |_, _| ());
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        let saved = saved_steps(directory.path());
        let [best, 9] = saved[..] else { panic!("{saved:?}") };
        assert!(best <= 5, "step {best} is kept");
        let path = directory.path().join(format!("step-{best:010}"));
        let saved = checkpoint::load::<Progress>(&path).unwrap();
        assert!(saved.parameters.iter().flat_map(|it| &it.values).all(|value| value.abs() < 100.0));
    }
}

fn buffers_may_differ_between_ranks_and_rank_0_saves_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let ended = run(&saving(directory.path(), 4, 1), 9, |_, _| 1.0, |_, _| ());
    let ended: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    assert_eq!(ended[0].parameters_hash, ended[1].parameters_hash);
    let saved = load_newest::<Progress>(directory.path()).unwrap().unwrap().checkpoint;
    assert_eq!(saved.parameters[COUNTER].values, [7.0; 2]);
}

/// There is nothing to evaluate, so the results of the evaluations are NaN.
fn stream_is_saved_and_resumed_after_its_first_epoch() {
    let [undisturbed, stopped] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let ended = run(&saving(undisturbed.path(), 2, 3), 4, |_, _| 1.0, |_, _| ());
    let expected = ended.into_iter().next().unwrap().unwrap().parameters_hash;
    let settings = saving(stopped.path(), 2, 3);
    let ended = run(
        &settings,
        4,
        |_, _| 1.0,
        |step, stop| {
            if step == 6 {
                stop.ask();
            }
        },
    );
    assert!(ended.iter().all(|ended| ended.as_ref().is_ok_and(|run| run.stopped.is_some())), "{ended:?}");
    for ended in run(&settings, 4, |_, _| 1.0, |_, _| ()) {
        assert_eq!(ended.unwrap().parameters_hash, expected);
    }
}

fn another_global_batch_is_refused_within_an_epoch() {
    // After 8 of 9 steps of an epoch, and at the end.
    for (fails_after, is_refused) in [(11, true), (usize::MAX, false)] {
        let directory = tempfile::tempdir().unwrap();
        unisono::threads(2, |mut comm| saved_run(&mut comm, directory.path(), false, fails_after).is_ok());
        let resumed = unisono::threads(2, |mut comm| {
            let resumed = Resumed::find(&mut comm, directory.path()).unwrap();
            let feed = shared(&comm, 24);
            let settings = RunSettings { global_batch: 24, ..run_settings(3, OutOfData::Error) };
            let trainer = Trainer::new(&mut comm, Line::new(), feed, settings, resumed);
            trainer.map(|trainer| trainer.settings().global_batch).map_err(|error| error.to_string())
        });
        for resumed in resumed {
            match resumed {
                Ok(global_batch) => assert!(!is_refused && global_batch == 24),
                Err(why) => assert!(is_refused && why.contains("with a global batch of 12"), "{why}"),
            }
        }
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        diverged_run_names_the_parameter_and_keeps_its_checkpoints,
        deferred_update_that_diverges_is_named_with_its_own_step,
        run_that_diverges_to_finite_values_keeps_its_best_checkpoint,
        buffers_may_differ_between_ranks_and_rank_0_saves_its_own,
        stream_is_saved_and_resumed_after_its_first_epoch,
        another_global_batch_is_refused_within_an_epoch,
    ]
}
