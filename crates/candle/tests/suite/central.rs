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
    BucketSettings, LocalSteps, Mirror, OptimizerSettings, Order, Outer, Overlap, Sgd, Wire,
};

use crate::{TOLERANCE, last, run, until};

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
        let losses = [None, Some(Strategy::CentralStorage)].map(|strategy| {
            let hidden = hidden.clone();
            let settings = settings(strategy);
            let settings =
                Config { model, dropout, hidden, clip_norm: None, learning_rate: 0.005, ..settings };
            until(2, 4, &settings).last.loss
        });
        assert!((losses[0] - losses[1]).abs() < TOLERANCE, "{model}: {losses:?}");
    }
}

/// Returns a run of two epochs that saves at every 30th step, and can be stopped.
fn saving(directory: &Path, strategy: Option<Strategy>) -> Config {
    crate::saving(directory, settings(strategy))
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
    let central = || settings(Some(Strategy::CentralStorage));
    let algorithm = Some(Algorithm::Tree.into());
    for (settings, said) in [
        (Config { shard_optimizer: true, ..central() }, "remove --shard-optimizer"),
        (Config { order: Order::Tree, ..central() }, "remove --order world-invariant"),
        (Config { algorithm, ..central() }, "does not go with --algorithm"),
    ] {
        let refused = run(2, &settings, |_| ());
        let errors: Vec<_> = refused.into_iter().map(|ended| ended.unwrap_err().to_string()).collect();
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
        (BucketSettings { overlap: Overlap::InTurn, ..usual() }, "remove --overlap in-turn"),
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
    crate::assert_diverges(3, &settings(Some(Strategy::CentralStorage)));
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
