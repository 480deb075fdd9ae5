//! Evaluations during runs of parameter servers, and early stopping.

use std::thread;
use std::time::Duration;

use unisono_candle::Config;
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::{Event, Stop, Summary};

use super::{on_rank_0, serve};

/// Returns a run of an epoch of 63 steps.
fn settings() -> Config {
    Config { global_batch: Some(32), ..super::settings() }
}

/// Returns the summary of a run that is asked to stop after a step, and the steps of its evaluations within epochs.
fn evaluated(settings: Config, stops_after: Option<usize>) -> (Summary, Vec<u64>) {
    let stop = Stop::default();
    let settings = Config { stop: stop.clone(), ..settings };
    on_rank_0(3, |comm| {
        let mut evaluations = Vec::new();
        let ended = settings.parameter_server(comm)?.run(|event| match event {
            Event::Step(made) if Some(made.step) == stops_after => {
                // Workers compute the next step meanwhile.
                thread::sleep(Duration::from_millis(100));
                stop.ask();
            }
            Event::Evaluation(made) => evaluations.push(made.step),
            _ => {}
        })?;
        Ok(ended.summary.map(|summary| (summary, evaluations)))
    })
    .unwrap()
}

fn evaluations_within_an_epoch_keep_the_bits_and_stop_the_run_early() {
    let (plain, _) = serve(3, &settings()).unwrap();
    let evaluating = Config { evaluate_every: Some(16), ..settings() };
    let (summary, evaluations) = evaluated(evaluating.clone(), None);
    assert_eq!((summary.parameters_hash, evaluations), (plain.parameters_hash, vec![16, 32, 48]));

    let directory = tempfile::tempdir().unwrap();
    let checkpoint_dir = Some(directory.path().to_owned());
    // No evaluation is better than the first.
    let stopping = Config { patience: Some(1), min_delta: 100.0, checkpoint_dir, keep: 1, ..evaluating };
    let (early, _) = serve(3, &stopping).unwrap();
    assert_eq!(early.ended_early.unwrap().step, 32);
    for kept in [16, 32] {
        let path = directory.path().join(format!("step-{kept:010}"));
        assert!(path.is_dir(), "{}", path.display());
    }
}

fn evaluation_that_a_stop_skips_is_made_by_the_resumed_run() {
    // The stop takes effect after step 31, 32, or a later one. Only after 32 does it skip an evaluation.
    let skips = || {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint_dir = Some(directory.path().to_owned());
        let run = Config { evaluate_every: Some(16), checkpoint_dir, resume: true, ..settings() };
        let (stopped, before) = evaluated(run.clone(), Some(31));
        (stopped.stopped.unwrap().step == 32 && before == [16]).then_some((directory, run))
    };
    let (_directory, run) = (0..10).find_map(|_| skips()).expect("a stop skips the evaluation");
    let (_, after) = evaluated(run, None);
    assert_eq!(after, [32, 48]);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        evaluations_within_an_epoch_keep_the_bits_and_stop_the_run_early,
        evaluation_that_a_stop_skips_is_made_by_the_resumed_run,
    ]
}
