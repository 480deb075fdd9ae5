//! A run that one rank is asked to stop. All ranks save the same step, and the resumed run ends with the same bits.

use unisono_train::{BucketSettings, LocalSteps, Outer, Stop, Stopped};

use super::trainer::{run_with, stoppable_run};
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Requests a stop on one rank, during the step with this number.
fn asks(at: usize, is_asked: bool) -> impl Fn(usize, &Stop) {
    move |made, stop| {
        if is_asked && made + 1 == at {
            stop.ask();
        }
    }
}

fn all_ranks_save_the_same_step_and_the_resumed_run_has_the_same_bits() {
    let whole = tempfile::tempdir().unwrap();
    let undisturbed = unisono::threads(2, |mut comm| {
        stoppable_run(&mut comm, Some(whole.path()), false, usize::MAX, |_, _| ()).unwrap()
    });
    assert_eq!(undisturbed[0].0.stopped, None);
    // During an epoch of 9 steps, in its last step, in the next epoch.
    for at in [2, 5, 9, 13] {
        for (before, after) in [(4, 2), (2, 4), (1, 2)] {
            let directory = tempfile::tempdir().unwrap();
            let stopped = unisono::threads(before, |mut comm| {
                let asked = comm.rank() == before - 1;
                stoppable_run(&mut comm, Some(directory.path()), true, usize::MAX, asks(at, asked)).unwrap()
            });
            for (summary, _) in &stopped {
                assert_eq!(
                    summary.stopped,
                    Some(Stopped { step: at as u64, is_saved: true }),
                    "{before} ranks"
                );
                assert_eq!(summary.parameters_hash, stopped[0].0.parameters_hash);
                assert!(summary.last.loss.is_finite() && summary.last.test_loss.is_nan());
            }
            let saved = directory.path().join(format!("step-{at:010}"));
            assert!(saved.is_dir(), "{}", saved.display());
            let resumed = unisono::threads(after, |mut comm| {
                stoppable_run(&mut comm, Some(directory.path()), true, usize::MAX, |_, _| ()).unwrap()
            });
            for (summary, _) in resumed {
                assert_eq!(
                    summary.parameters_hash, undisturbed[0].0.parameters_hash,
                    "{before}, {after}, {at}"
                );
                assert_eq!(summary.stopped, None);
            }
        }
    }
}

fn run_without_checkpoint_directory_stops_too() {
    let stopped = unisono::threads(2, |mut comm| {
        let asked = comm.rank() == 1;
        stoppable_run(&mut comm, None, false, usize::MAX, asks(4, asked)).unwrap()
    });
    for (summary, _) in stopped {
        assert_eq!(summary.stopped, Some(Stopped { step: 4, is_saved: false }));
    }
}

fn stop_and_checkpoint_wait_for_a_round_that_ends_with_its_epoch() {
    let local_steps = Some(LocalSteps { steps: 100, outer: Outer::Average });
    let buckets = BucketSettings { local_steps, ..BucketSettings::default() };
    let stopped = unisono::threads(2, |mut comm| {
        let asks = asks(2, comm.rank() == 1);
        run_with(&mut comm, buckets.clone(), None, false, usize::MAX, asks).unwrap()
    });
    for (summary, _) in stopped {
        assert_eq!(summary.stopped, Some(Stopped { step: 9, is_saved: false }));
    }
    // A checkpoint is due after step 4 of 9, and the run fails in the next epoch.
    let directory = tempfile::tempdir().unwrap();
    unisono::threads(2, |mut comm| {
        run_with(&mut comm, buckets.clone(), Some(directory.path()), false, 11, |_, _| ()).unwrap_err()
    });
    let is_saved = |step: u64| directory.path().join(format!("step-{step:010}")).is_dir();
    assert_eq!([4, 8, 9].map(is_saved), [false, false, true]);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        stop_and_checkpoint_wait_for_a_round_that_ends_with_its_epoch,
        all_ranks_save_the_same_step_and_the_resumed_run_has_the_same_bits,
        run_without_checkpoint_directory_stops_too,
    ]
}
