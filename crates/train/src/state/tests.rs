//! Saves that are due, evaluations that count, resumed runs and warnings.

use std::path::Path;

use super::*;
use crate::checkpoint::When;
use crate::optimizer::{OptimizerSettings, Sgd};
use crate::rate::{Rate, Schedule};
use crate::run::{Checkpoints, EarlyStopping};

fn settings(directory: Option<&Path>) -> RunSettings {
    let rate = Rate::new(Schedule::Constant, 0.1, 0.0, 1);
    let checkpoints = directory.map(|directory| Checkpoints {
        when: When { every_steps: Some(2), every: None },
        ..Checkpoints::new(directory)
    });
    RunSettings { checkpoints, ..RunSettings::new(1, 4, OptimizerSettings::new(Sgd::default()), rate) }
}

fn open(comm: &mut Communicator, directory: Option<&Path>) -> RunState {
    RunState::open(comm, settings(directory), None).unwrap()
}

/// Runs to step 2, and saves it.
fn save_step_2(comm: &mut Communicator, directory: &Path) {
    let mut state = open(comm, Some(directory));
    state.progress.step = 2;
    let saved = checkpoint(2, state.progress.clone());
    state.save(Some(saved)).unwrap();
}

/// Resumes the run whose checkpoints are in the directory.
fn resume(comm: &mut Communicator, directory: &Path, settings: RunSettings) -> RunState {
    let resumed = Resumed::find(comm, directory).unwrap();
    RunState::open(comm, settings, Some(&resumed.unwrap())).unwrap()
}

fn checkpoint<S>(step: u64, state: S) -> Checkpoint<S> {
    Checkpoint { step, state, parameters: vec![], optimizer: vec![] }
}

fn sums(loss: f64) -> LossSums {
    LossSums { targets: 1.0, loss, correct: 0.0 }
}

fn make_step(state: &mut RunState, tally: LossSums) {
    state.complete_step(tally, (0.1, None, Times::default()), &mut |_| ()).unwrap();
}

#[test]
fn a_step_is_due_for_one_save() {
    let directory = tempfile::tempdir().unwrap();
    unisono::threads(1, |mut comm| {
        let mut state = open(&mut comm, Some(directory.path()));
        state.progress.step = 2;
        assert!(state.is_save_due(2));
        let saved = checkpoint(2, state.progress.clone());
        state.save(Some(saved)).unwrap();
        assert_eq!([2, 3, 4].map(|step| state.is_save_due(step)), [false, false, true]);
    });
}

#[test]
fn checkpoint_with_the_lowest_loss_is_kept_besides_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    let path = |step: u64| directory.path().join(format!("step-{step:010}"));
    let kept = || (0..=50).filter(|&step| path(step).is_dir()).collect::<Vec<_>>();
    let settings = || {
        let checkpoints = Some(Checkpoints { keep: 2, ..Checkpoints::new(directory.path()) });
        RunSettings { checkpoints, ..settings(None) }
    };
    let train = |state: &mut RunState, losses: &[(u64, f64)]| {
        for &(step, loss) in losses {
            state.progress.step = step;
            if step != 6 {
                let saved = checkpoint(step, state.progress.clone());
                state.save(Some(saved)).unwrap();
            }
            make_step(state, sums(loss));
        }
    };
    unisono::threads(1, |mut comm| {
        let mut state = RunState::open(&mut comm, settings(), None).unwrap();
        // The loss of a step is recorded after the step is saved. Losses of steps without a checkpoint do not count.
        let losses = [(5, 3.0), (6, 0.1), (10, 1.0), (15, 2.0), (20, 1e30), (25, f64::NAN), (30, 1e30)];
        train(&mut state, &losses);
        drop(state);
        assert_eq!(kept(), [10, 25, 30]);

        let mut state = resume(&mut comm, directory.path(), settings());
        train(&mut state, &[(35, 2.0), (40, 2.0)]);
        drop(state);
        assert_eq!(kept(), [10, 35, 40]);

        std::fs::remove_dir_all(path(10)).unwrap();
        let mut state = resume(&mut comm, directory.path(), settings());
        assert_eq!(state.progress.lowest, None);
        train(&mut state, &[(45, 2.0)]);
        assert_eq!(state.progress.lowest, Some(Lowest { step: 45, loss: 2.0 }));
    });
}

/// The step is saved before it is evaluated, and again at the end.
#[test]
fn last_step_replaces_the_best_checkpoint_if_it_is_better() {
    let directory = tempfile::tempdir().unwrap();
    unisono::threads(1, |mut comm| {
        let early_stopping = Some(EarlyStopping { patience: 9, min_delta: 0.0 });
        let checkpoints = Some(Checkpoints { keep: 1, ..Checkpoints::new(directory.path()) });
        let settings = RunSettings { early_stopping, checkpoints, ..settings(None) };
        let mut state = RunState::open(&mut comm, settings, None).unwrap();
        let evaluate = |state: &mut RunState, loss| {
            state.evaluated(Test { tally: sums(loss), ..Test::default() });
        };
        let save = |state: &mut RunState| {
            state.save(Some(checkpoint(state.progress.step, state.progress.clone()))).unwrap();
        };
        state.progress.step = 2;
        evaluate(&mut state, 2.0);
        save(&mut state);
        state.progress.step = 4;
        save(&mut state);
        evaluate(&mut state, 1.0);
        state.take_store().unwrap().save(checkpoint(4, state.progress.clone())).unwrap();
        let is_kept = |step: u64| directory.path().join(format!("step-{step:010}")).is_dir();
        assert_eq!([2, 4].map(is_kept), [false, true]);
    });
}

#[test]
fn damaged_checkpoint_is_not_the_one_with_the_lowest_loss() {
    let directory = tempfile::tempdir().unwrap();
    unisono::threads(1, |mut comm| {
        save_step_2(&mut comm, directory.path());
        std::fs::create_dir(directory.path().join("step-0000000003")).unwrap();
        let mut state = resume(&mut comm, directory.path(), settings(Some(directory.path())));
        [2.0, 1.0].into_iter().for_each(|loss| make_step(&mut state, sums(loss)));
        assert_eq!(state.progress.lowest, Some(Lowest { step: 2, loss: 2.0 }));
    });
}

#[test]
fn resumed_run_repeats_no_evaluation_of_an_older_version() {
    for (is_older, is_evaluated) in [(false, false), (false, true), (true, true)] {
        let directory = tempfile::tempdir().unwrap();
        unisono::threads(1, |mut comm| {
            let early_stopping = Some(EarlyStopping { patience: 1, min_delta: 0.0 });
            let checkpoints = Some(Checkpoints::new(directory.path()));
            let settings =
                RunSettings { early_stopping, checkpoints, evaluate_every: Some(2), ..settings(None) };
            let mut state = RunState::open(&mut comm, settings.clone(), None).unwrap();
            state.progress.step = 2;
            if is_evaluated {
                state.evaluated(Test { tally: sums(1.0), ..Test::default() });
            }
            let mut saved = serde_json::to_value(&state.progress).unwrap();
            drop(state);
            if is_older {
                saved.as_object_mut().unwrap().remove("evaluated").unwrap();
            }
            Store::open(directory.path(), 1).unwrap().save(checkpoint(2, saved)).unwrap();

            let mut state = resume(&mut comm, directory.path(), settings);
            assert_eq!(state.is_evaluation_due(), !is_evaluated, "{is_older}");
            let best = state.progress.best;
            state.evaluated(Test { tally: sums(1.0), ..Test::default() });
            assert_eq!(state.progress.best == best, is_evaluated, "it counts once: {is_older}");
            state.progress.step = 4;
            assert!(state.is_evaluation_due());
        });
    }
}

#[test]
fn only_steps_of_less_than_a_quarter_of_the_batch_have_a_lower_rate() {
    unisono::threads(1, |mut comm| {
        let mut state = open(&mut comm, None);
        state.settings.global_batch = 200;
        let factor = |last: usize| state.short_step_factor(1, |steps| Some((200 * steps).min(200 + last)));
        assert_eq!([200, 60, 50, 25, 2].map(factor), [1.0, 1.0, 1.0, 0.5, 0.04]);
        assert_eq!(state.short_step_factor(1, |_| None), 1.0);
    });
}

#[test]
fn epoch_without_progress_is_reported_once() {
    unisono::threads(1, |mut comm| {
        let (mut state, mut notices) = (open(&mut comm, None), Vec::new());
        // The first epoch has only the first step.
        for (epoch, loss) in [(1, 2.0), (2, 1.8), (3, 1.95), (4, 7.0)] {
            make_step(&mut state, LossSums { targets: 2.0, loss: 4.0, correct: 0.0 });
            let report = EpochReport { epoch, loss, ..EpochReport::default() };
            let receive = &mut |event| {
                if let Event::Notice(notice) = event {
                    notices.push(notice);
                }
            };
            state.emit(Event::Epoch(report), receive).unwrap();
        }
        let expected = "the mean loss of epoch 3 is 1.9500, and that of the first step was 2.0000: ";
        assert!(notices.len() == 1 && notices[0].starts_with(expected), "{notices:?}");
    });
}

#[test]
fn checkpoint_may_be_a_symbolic_link() {
    let [directory, elsewhere] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (name, target) = (directory.path().join("step-0000000002"), elsewhere.path().join("moved"));
    unisono::threads(1, |mut comm| {
        save_step_2(&mut comm, directory.path());
        std::fs::rename(&name, &target).unwrap();
        std::os::unix::fs::symlink(&target, &name).unwrap();
        for found in [directory.path(), &name] {
            let resumed = Resumed::find(&mut comm, found).unwrap().unwrap();
            assert!(resumed.is_in(directory.path()) && !resumed.is_in(elsewhere.path()), "{resumed:?}");
        }
    });
}

#[test]
fn curves_before_a_checkpoint_are_written_before_it() {
    let [directory, curves] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    unisono::threads(1, |mut comm| {
        let log_directory = Some(curves.path().to_owned());
        let settings = RunSettings { log_directory, ..settings(Some(directory.path())) };
        let mut state = RunState::open(&mut comm, settings, None).unwrap();
        state.progress.step = 2;
        let evaluation = Test { tally: sums(1.0), ..Test::default() }.evaluation(1, 2);
        state.emit(Event::Evaluation(evaluation), &mut |_| ()).unwrap();
        let saved = checkpoint(2, state.progress.clone());
        state.save(Some(saved)).unwrap();
        // The process could be killed here.
        let file = std::fs::read_dir(curves.path()).unwrap().next().unwrap().unwrap();
        let written = std::fs::read(file.path()).unwrap();
        assert!(String::from_utf8_lossy(&written).contains("evaluation/test loss"));
    });
}

#[test]
fn resumed_run_saves_the_description_of_its_settings() {
    let directory = tempfile::tempdir().unwrap();
    unisono::threads(1, |mut comm| {
        let mut state = open(&mut comm, Some(directory.path()));
        let saved = checkpoint(2, state.progress.clone());
        state.save(Some(saved)).unwrap();
        drop(state);
        let settings = RunSettings { description: "another".into(), ..settings(Some(directory.path())) };
        let state = resume(&mut comm, directory.path(), settings);
        assert_eq!(state.progress.description, "another");
    });
}
