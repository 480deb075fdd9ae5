//! Callbacks that control runs, and runs that end early.

use std::path::Path;

use unisono::Communicator;
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::checkpoint::{self, When};
use unisono_train::{
    BucketSettings, Callback, Checkpoints, EarlyStopping, EpochReport, Event, Flow, LocalSteps, OutOfData,
    Outer, Progress, Resumed, RunSettings, Summary, TrainError, Trainer,
};

use super::line::Line;
use super::trainer::{run_settings, shared};

/// The steps of an epoch.
const STEPS: usize = 9;

/// Decides by the epoch, and records the learning rates of all steps and the reports of all epochs.
struct Deciding<'a, F> {
    decides: F,
    rates: &'a mut Vec<f64>,
    reports: &'a mut Vec<EpochReport>,
}

impl<F: FnMut(usize) -> Flow> Callback for Deciding<'_, F> {
    fn on_event(&mut self, event: Event) {
        if let Event::Step(step) = event {
            self.rates.push(step.rate);
        }
    }

    fn on_epoch_end(&mut self, report: &EpochReport) -> Result<Flow, TrainError> {
        self.reports.push(report.clone());
        Ok((self.decides)(report.epoch))
    }
}

fn train(
    comm: &mut Communicator,
    settings: RunSettings,
    callback: impl Callback,
) -> Result<Summary, TrainError> {
    let resumed = match &settings.checkpoints {
        Some(kept) => Resumed::find(comm, &kept.directory)?,
        None => None,
    };
    let feed = shared(comm, 12);
    Trainer::new(comm, Line::new(), feed, settings, resumed)?.run(callback)
}

/// Makes a run of three epochs on two ranks. Returns its result, its learning rates and its reports.
fn run(
    directory: Option<&Path>,
    decides: impl Fn(usize) -> Flow + Sync,
) -> (Result<Summary, TrainError>, Vec<f64>, Vec<EpochReport>) {
    let mut ranks = unisono::threads(2, |mut comm| {
        let checkpoints = directory.map(Checkpoints::new);
        let settings = RunSettings { checkpoints, ..run_settings(3, OutOfData::Error) };
        let (mut rates, mut reports) = (Vec::new(), Vec::new());
        let callback = Deciding { decides: &decides, rates: &mut rates, reports: &mut reports };
        let ended = train(&mut comm, settings, callback);
        (ended, rates, reports)
    });
    ranks.swap_remove(0)
}

fn callback_scales_the_learning_rates_of_later_steps_and_of_a_resumed_run() {
    let plain = run(None, |_| Flow::Continue).1;
    let halves = |epoch| if epoch == 1 { Flow::ScaleRate(0.5) } else { Flow::Continue };
    let (whole, rates, _) = run(None, halves);
    let expected: Vec<_> =
        plain.iter().zip(0..).map(|(rate, step)| if step < STEPS { *rate } else { rate * 0.5 }).collect();
    assert_eq!((rates.len(), rates), (3 * STEPS, expected.clone()));

    let directory = tempfile::tempdir().unwrap();
    let stops = |epoch| if epoch == 2 { Flow::Stop } else { halves(epoch) };
    let (stopped, rates, reports) = run(Some(directory.path()), stops);
    let stopped = stopped.unwrap();
    assert_eq!((rates.len(), reports.len(), stopped.stopped), (2 * STEPS, 2, None));
    assert!(stopped.last == reports[1] && stopped.last.test_loss.is_finite());

    let (resumed, rates, _) = run(Some(directory.path()), |_| Flow::Continue);
    assert_eq!(rates, expected[2 * STEPS..]);
    assert_eq!(resumed.unwrap().parameters_hash, whole.unwrap().parameters_hash);
}

fn differing_or_invalid_decisions_end_the_run_on_all_ranks() {
    let ends = |decides: fn(usize, usize) -> Result<Flow, TrainError>| {
        unisono::threads(3, |mut comm| {
            let rank = comm.rank();
            struct ByRank<F>(usize, F);
            impl<F: Fn(usize, usize) -> Result<Flow, TrainError>> Callback for ByRank<F> {
                fn on_epoch_end(&mut self, report: &EpochReport) -> Result<Flow, TrainError> {
                    self.1(self.0, report.epoch)
                }
            }
            let ended = train(&mut comm, run_settings(3, OutOfData::Error), ByRank(rank, decides));
            ended.unwrap_err().to_string()
        })
    };
    let differ = ends(|rank, epoch| Ok(if (rank, epoch) == (2, 2) { Flow::Stop } else { Flow::Continue }));
    for why in differ {
        assert!(
            why.starts_with("the callbacks of ranks [2] decided otherwise than rank 0's after epoch 2"),
            "{why}"
        );
    }
    let senseless = ends(|_, _| Ok(Flow::ScaleRate(-1.0)));
    assert_eq!(senseless[0], "a callback scales the learning rate by `-1`: expected a finite factor above 0");
    let vanishing = ends(|_, _| Ok(Flow::ScaleRate(1e-200)));
    assert!(vanishing[0].starts_with("callbacks together scale the learning rate by `0`"), "{vanishing:?}");
    let failed = ends(|rank, _| match rank {
        1 => Err(TrainError::Setting("no room for a plot".to_owned())),
        _ => Ok(Flow::Continue),
    });
    assert_eq!(failed[1], "no room for a plot");
    for other in [&failed[0], &failed[2]] {
        assert!(other.contains("cannot continue") && other.ends_with("no room for a plot"), "{other}");
    }
}

/// An improvement that no evaluation reaches, so the first evaluation stays the best.
const NEVER: f64 = 1e6;

fn early_stopping_keeps_the_checkpoint_of_the_best_evaluation() {
    // The best evaluation is within an epoch, and at the end of one.
    for (evaluate_every, best) in [(Some(2), 2), (None, STEPS as u64)] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let run = |epochs, patience| {
            let when = When { every_steps: Some(3), every: None };
            let checkpoints = Some(Checkpoints { keep: 1, when, ..Checkpoints::new(place) });
            let early_stopping = Some(EarlyStopping { patience, min_delta: NEVER });
            let settings = RunSettings {
                checkpoints,
                early_stopping,
                evaluate_every,
                ..run_settings(epochs, OutOfData::Error)
            };
            let mut ended = unisono::threads(2, |mut comm| {
                let mut losses = Vec::new();
                let summary = train(&mut comm, settings.clone(), |event| match event {
                    Event::Evaluation(evaluation) => losses.push(evaluation.test_loss),
                    Event::Epoch(report) => losses.push(report.test_loss),
                    _ => {}
                });
                (summary.unwrap(), losses)
            });
            ended.swap_remove(0)
        };
        let (first, losses) = run(1, 100);
        assert_eq!(first.ended_early, None);
        let (summary, _) = run(3, if evaluate_every.is_some() { 7 } else { 2 });
        let ended = summary.ended_early.unwrap();
        assert!(ended.step > best + 6 && ended.best.step == best, "{ended:?}");
        let kept = |step: u64| place.join(format!("step-{step:010}"));
        let saved = checkpoint::load::<Progress>(&kept(best)).unwrap();
        assert_eq!((saved.step, saved.state.best.unwrap().test_loss), (best, losses[0]));
        let names = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = names.filter(|path| path.is_dir()).collect();
        names.sort();
        assert_eq!(names, [kept(best), kept(ended.step)]);
    }
}

fn run_killed_after_the_evaluation_that_ends_it_completes_its_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let when = When { every_steps: Some(4), every: None };
    let settings = RunSettings {
        checkpoints: Some(Checkpoints { when, ..Checkpoints::new(directory.path()) }),
        early_stopping: Some(EarlyStopping { patience: 1, min_delta: NEVER }),
        evaluate_every: Some(2),
        ..run_settings(3, OutOfData::Error)
    };
    unisono::threads(1, |mut comm| {
        // Ends the run before it saves the end of its epoch.
        let fails = |_: usize| Flow::ScaleRate(-1.0);
        let callback = Deciding { decides: fails, rates: &mut Vec::new(), reports: &mut Vec::new() };
        train(&mut comm, settings.clone(), callback).unwrap_err();
    });
    unisono::threads(1, |mut comm| {
        let summary = train(&mut comm, settings.clone(), |_: Event| ()).unwrap();
        assert_eq!((summary.ended_early.unwrap().step, summary.last.epoch), (4, 1));
        assert!(summary.last.loss > 0.0 && summary.last.loss.is_finite(), "{summary:?}");
    });
}

fn evaluation_that_a_stop_skips_is_made_by_the_resumed_run() {
    let directory = tempfile::tempdir().unwrap();
    let evaluations = |asks_after| {
        let mut ranks = unisono::threads(2, |mut comm| {
            let checkpoints = Some(Checkpoints::new(directory.path()));
            let run = run_settings(1, OutOfData::Error);
            let settings = RunSettings { checkpoints, evaluate_every: Some(2), ..run };
            let (stop, mut evaluations) = (settings.stop.clone(), Vec::new());
            let ended = train(&mut comm, settings, |event| match event {
                Event::Step(made) if made.step == asks_after => stop.ask(),
                Event::Evaluation(made) => evaluations.push(made.step),
                _ => {}
            });
            ended.map(|_| evaluations).unwrap()
        });
        ranks.swap_remove(0)
    };
    // The run stops after the next step.
    assert_eq!(evaluations(3), [2]);
    assert_eq!(evaluations(usize::MAX), [4, 6, 8]);
}

fn evaluation_waits_for_the_end_of_a_round_of_local_steps() {
    let evaluations = unisono::threads(2, |mut comm| {
        let local_steps = Some(LocalSteps { steps: 3, outer: Outer::Average });
        let buckets = BucketSettings { local_steps, ..BucketSettings::default() };
        let settings = RunSettings { buckets, evaluate_every: Some(2), ..run_settings(1, OutOfData::Error) };
        let mut evaluations = Vec::new();
        let ended = train(&mut comm, settings, |event| {
            if let Event::Evaluation(made) = event {
                evaluations.push(made.step);
            }
        });
        ended.map(|_| evaluations).unwrap()
    });
    assert_eq!(evaluations, [[3, 6], [3, 6]]);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        evaluation_waits_for_the_end_of_a_round_of_local_steps,
        evaluation_that_a_stop_skips_is_made_by_the_resumed_run,
        run_killed_after_the_evaluation_that_ends_it_completes_its_epoch,
        callback_scales_the_learning_rates_of_later_steps_and_of_a_resumed_run,
        early_stopping_keeps_the_checkpoint_of_the_best_evaluation,
        differing_or_invalid_decisions_end_the_run_on_all_ranks
    ]
}
