//! Central storage with ranks as threads.

use std::path::Path;

use candle_core::Tensor;
use unisono::Algorithm;
use unisono_candle::model::ModelKind;
use unisono_candle::{Config, Linear, Loss, Network, Parameters};
use unisono_strategies::Strategy;
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::{
    BucketSettings, Event, LocalSteps, Mirror, OptimizerSettings, Order, Outer, Overlap, Sgd, Stop, Summary,
    TrainError, Wire,
};

/// The largest difference between losses whose additions have different orders.
const TOLERANCE: f64 = 1e-5;

fn settings(strategy: Option<Strategy>) -> Config {
    Config {
        epochs: 2,
        hidden: Some(vec![32, 16]),
        // Four passes on one rank, and different numbers of passes on three ranks.
        global_batch: Some(25),
        batch_size: 8,
        learning_rate: 0.2,
        clip_norm: Some(0.5),
        strategy,
        ..Config::new(crate::digits(), ModelKind::Mlp)
    }
}

fn run(ranks: usize, settings: &Config) -> Vec<Result<Summary, TrainError>> {
    unisono::threads(ranks, |mut comm| settings.trainer(&mut comm)?.run(|_| ()))
}

fn last(ranks: usize, settings: &Config) -> Summary {
    let mut all: Vec<_> = run(ranks, settings).into_iter().map(Result::unwrap).collect();
    let first = all.remove(0);
    assert!(all.iter().all(|other| other.parameters_hash == first.parameters_hash));
    first
}

fn losses_match_mirrored_training_and_runs_are_bitwise_reproducible() {
    let alone = last(1, &settings(None));
    assert!(alone.last.test_accuracy > 0.5, "{alone:?}");
    for ranks in [1, 2, 3] {
        let central = settings(Some(Strategy::CentralStorage));
        let shared = last(ranks, &central);
        assert!((shared.last.loss - alone.last.loss).abs() < TOLERANCE, "{ranks}: {shared:?}, {alone:?}");
        assert!((shared.last.test_loss - alone.last.test_loss).abs() < TOLERANCE, "{ranks}: {shared:?}");
        assert_eq!(last(ranks, &central).parameters_hash, shared.parameters_hash);
    }
}

fn every_model_trains() {
    for (model, dropout) in [(ModelKind::Mlp, 0.2), (ModelKind::Cnn, 0.0), (ModelKind::ResNet, 0.0)] {
        let hidden = (model == ModelKind::ResNet).then(|| vec![8]);
        let stop = Stop::default();
        let of = |strategy| Config {
            model,
            dropout,
            hidden: hidden.clone(),
            stop: stop.clone(),
            clip_norm: None,
            learning_rate: 0.005,
            ..settings(strategy)
        };
        let losses = [None, Some(Strategy::CentralStorage)].map(|strategy| {
            let settings = Config { stop: Stop::default(), ..of(strategy) };
            let ended = unisono::threads(2, |mut comm| {
                settings.trainer(&mut comm)?.run(|event| {
                    if matches!(event, Event::Step(step) if step.step == 4) {
                        settings.stop.ask();
                    }
                })
            });
            ended.into_iter().next().unwrap().unwrap().last.loss
        });
        assert!((losses[0] - losses[1]).abs() < TOLERANCE, "{model}: {losses:?}");
    }
}

/// Returns a run of two epochs that saves at every 30th step, and can be stopped.
fn saving(directory: &Path, strategy: Option<Strategy>) -> Config {
    crate::saving(directory, settings(strategy))
}

/// Runs until the given step, and then requests a stop.
fn until(ranks: usize, step: usize, settings: &Config) {
    let settings = Config { stop: Stop::default(), ..settings.clone() };
    let asks = |event: Event| {
        if let Event::Step(made) = event
            && made.step + 80 * (made.epoch - 1) == step
        {
            settings.stop.ask();
        }
    };
    let ended = unisono::threads(ranks, |mut comm| settings.trainer(&mut comm)?.run(asks));
    assert!(ended.into_iter().all(|ended| ended.unwrap().stopped.is_some()), "it stops on all ranks");
}

fn one_rank_switches_to_mirrored_training_and_back_with_the_same_bits() {
    let directory = tempfile::tempdir().unwrap();
    let central = saving(directory.path(), Some(Strategy::CentralStorage));
    let undisturbed = last(1, &central.without_checkpoints());
    until(1, 20, &central);
    until(1, 50, &saving(directory.path(), None));
    assert_eq!(last(1, &central).parameters_hash, undisturbed.parameters_hash);
}

fn run_resumed_on_as_many_ranks_has_the_same_bits() {
    let directory = tempfile::tempdir().unwrap();
    let central = saving(directory.path(), Some(Strategy::CentralStorage));
    let undisturbed = last(2, &central.without_checkpoints());
    until(2, 50, &central);
    assert_eq!(last(2, &central).parameters_hash, undisturbed.parameters_hash);
    // Another number of ranks changes the order of additions.
    let directory = tempfile::tempdir().unwrap();
    let central = saving(directory.path(), Some(Strategy::CentralStorage));
    until(3, 50, &central);
    let ended = last(2, &central);
    assert!((ended.last.test_loss - undisturbed.last.test_loss).abs() < 1e-3, "{ended:?} {undisturbed:?}");
}

fn options_without_effect_are_refused() {
    let central = settings(Some(Strategy::CentralStorage));
    for (settings, said) in [
        (Config { shard_optimizer: true, ..central.clone() }, "remove --shard-optimizer"),
        (Config { order: Order::Tree, ..central.clone() }, "remove --order world-invariant"),
        (
            Config { algorithm: Some(Algorithm::Tree.into()), ..central.clone() },
            "does not go with --algorithm",
        ),
    ] {
        let errors: Vec<_> =
            run(2, &settings).into_iter().map(|ended| ended.unwrap_err().to_string()).collect();
        assert!(errors.iter().any(|error| error.contains(said)), "{errors:?}");
    }
}

/// Fails if a run ignores a setting of a mirror, or panics at the end of a round of local steps.
fn settings_of_a_mirror_without_effect_are_refused() {
    let usual = BucketSettings::default;
    let local = LocalSteps { steps: 2, outer: Outer::Average };
    for (buckets, said) in [
        (BucketSettings { local_steps: Some(local), ..usual() }, "remove --local-steps"),
        (BucketSettings { order: Order::Tree, ..usual() }, "remove --order world-invariant"),
        (BucketSettings { shard_optimizer: true, ..usual() }, "remove --shard-optimizer"),
        (BucketSettings { overlap: Overlap::Across, ..usual() }, "remove --overlap across"),
        (BucketSettings { wire: Wire::Bf16, ..usual() }, "remove --wire bf16"),
    ] {
        let refused = unisono::threads(2, |mut comm| {
            let parameters = Parameters::shared(7, &mut comm).unwrap();
            let layer = Linear::new(&parameters, "layer", 2, 1, 1.0).unwrap();
            let replica = Network::new(&parameters, move |inputs: &Tensor| {
                Loss::squared_error(&layer.forward(inputs)?, &[1.0])
            });
            let optimizer = OptimizerSettings::new(Sgd::default());
            Mirror::new(&mut comm, replica, optimizer, &buckets, None).map(drop).unwrap_err().to_string()
        });
        assert!(refused[0].contains("central storage") && refused[0].contains(said), "{refused:?}");
        assert_eq!(refused[1], "rank 0 reports an error");
    }
}

fn diverging_loss_ends_the_run_on_all_ranks() {
    let settings = Config { learning_rate: 1e6, clip_norm: None, ..settings(Some(Strategy::CentralStorage)) };
    for error in run(3, &settings).into_iter().map(Result::unwrap_err) {
        let said = error.to_string();
        let causes = ["finite", "diverge", "the largest value of"];
        assert!(causes.iter().any(|cause| said.contains(cause)), "{said}");
    }
}

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        losses_match_mirrored_training_and_runs_are_bitwise_reproducible,
        every_model_trains,
        one_rank_switches_to_mirrored_training_and_back_with_the_same_bits,
        options_without_effect_are_refused,
        settings_of_a_mirror_without_effect_are_refused,
        diverging_loss_ends_the_run_on_all_ranks,
    ];
    tests.extend(tests![run_resumed_on_as_many_ranks_has_the_same_bits].into_iter().map(Test::deep));
    tests
}
