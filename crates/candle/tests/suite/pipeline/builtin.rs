//! The built-in models cut into stages by settings.

use std::sync::Arc;

use unisono_candle::model::ModelKind;
use unisono_candle::{Config, Part, Saved};
use unisono_data::Source;
use unisono_strategies::Strategy;
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::metrics::{F1, Named, TopK};
use unisono_train::{EpochReport, Order};

use crate::{TOLERANCE, last, run, until};

fn settings() -> Config {
    Config {
        epochs: 2,
        hidden: Some(vec![32, 24, 16]),
        // Four passes on one rank.
        global_batch: Some(50),
        batch_size: 16,
        learning_rate: 0.2,
        metrics: vec![Named(Arc::new(TopK(2))), Named(Arc::new(F1))],
        // The norm over all stages.
        clip_norm: Some(0.5),
        ..Config::new(crate::digits(), ModelKind::Mlp)
    }
}

/// Returns the settings of the run cut into this many stages.
fn cut(settings: Config, stages: usize, schedule: &str) -> Config {
    Config {
        strategy: Some(Strategy::Pipeline),
        stages: Some(stages),
        pipeline_schedule: schedule.parse().unwrap(),
        ..settings
    }
}

fn assert_near(found: &EpochReport, expected: &EpochReport, what: &str) {
    for (found, expected) in [(found.loss, expected.loss), (found.test_loss, expected.test_loss)] {
        assert!((found - expected).abs() < TOLERANCE, "{what}: {found}, on one rank {expected}");
    }
    for (name, value) in &found.metrics {
        // One or two of 500 samples may be at the decision boundary.
        assert!((value - expected.metrics[name]).abs() < 8e-3, "{what}: {name} {value}");
    }
}

fn losses_and_metrics_match_one_rank() {
    let alone = last(1, &settings()).last;
    assert!(alone.test_accuracy > 0.4 && alone.metrics.len() == 2, "{alone:?}");
    for (ranks, length, schedule) in
        [(1, 1, "1f1b"), (2, 2, "gpipe"), (4, 2, "1f1b"), (3, 3, "1f1b"), (4, 2, "interleaved:2")]
    {
        let staged = last(ranks, &cut(settings(), length, schedule));
        assert_near(&staged.last, &alone, &format!("{ranks} ranks, {length} stages by {schedule}"));
    }
}

fn optimizer_state_is_sharded_among_the_replicas_of_a_stage() {
    let whole = cut(settings(), 2, "1f1b");
    let sharded = Config { shard_optimizer: true, ..whole.clone() };
    assert_near(&last(4, &sharded).last, &last(4, &whole).last, "sharded");
}

fn transformer_and_cnn_train_in_stages() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    std::fs::write(&text, "All work and no play makes Jack a dull boy. ".repeat(100)).unwrap();
    let of_text = Config {
        epochs: 1,
        context: 16,
        global_batch: Some(32),
        ..Config::new(Source::Text(text), ModelKind::Transformer)
    };
    let of_images = Config {
        epochs: 1,
        learning_rate: 0.001,
        batch_size: 16,
        global_batch: Some(64),
        ..Config::new(crate::digits(), ModelKind::Cnn)
    };
    for settings in [of_text, of_images] {
        let staged = until(2, 6, &cut(settings.clone(), 2, "1f1b")).last.loss;
        let alone = until(1, 6, &settings).last.loss;
        assert!((staged - alone).abs() < TOLERANCE, "{}: {staged}, on one rank {alone}", settings.model);
    }
}

fn complete_checkpoint_resumes_under_other_strategies() {
    let directory = tempfile::tempdir().unwrap();
    let whole = || crate::saving(directory.path(), settings());
    let undisturbed = last(1, &whole().without_checkpoints());
    until(2, 20, &whole());
    until(4, 35, &cut(whole(), 2, "interleaved:2"));
    until(3, 55, &whole());
    let ended = last(2, &cut(whole(), 2, "1f1b"));
    assert_near(&ended.last, &undisturbed.last, "over four worlds");
    // One rank can read the complete checkpoint.
    let saved = Saved::open(directory.path()).unwrap();
    assert_eq!(saved.parameters_hash().unwrap(), ended.parameters_hash);
    let evaluated = unisono::threads(2, |mut comm| saved.evaluate(&mut comm, None, Part::Test, &[]).unwrap());
    assert!((evaluated[0].test.tally.mean_loss() - ended.last.test_loss).abs() < 1e-12);
}

fn run_resumed_in_the_same_world_has_the_same_bits() {
    let directory = tempfile::tempdir().unwrap();
    let run = || Config {
        // The measured costs of layers may differ between runs.
        split_at: Some(vec!["hidden3".to_owned()]),
        ..cut(crate::saving(directory.path(), settings()), 2, "1f1b")
    };
    let undisturbed = last(4, &run().without_checkpoints());
    until(4, 50, &run());
    assert_eq!(last(4, &run()).parameters_hash, undisturbed.parameters_hash);
}

fn invalid_cuts_are_refused_on_all_ranks() {
    let refused = |ranks: usize, settings: &Config| {
        let errors = run(ranks, settings, |_| ()).into_iter().map(|ended| ended.unwrap_err().to_string());
        let mut errors: Vec<_> = errors.collect();
        let first = errors.remove(0);
        assert!(errors.iter().all(|error| error == "rank 0 reports an error"), "{errors:?}");
        first
    };
    let of = |stages| cut(settings(), stages, "1f1b");
    let split_at = |names: &[&str]| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Config { split_at: Some(names), ..of(2) }
    };
    for (ranks, settings, said) in [
        (3, of(2), "a multiple of the 2 ranks of a pipeline; this world has 3 ranks"),
        (5, of(5), "has 4 layers (hidden1, hidden2, hidden3, output), which cannot be cut into 5"),
        (2, split_at(&["hidden9"]), "no layer is called `hidden9`"),
        (2, split_at(&["hidden1"]), "no stage can begin at hidden1"),
        (2, split_at(&["hidden2", "output"]), "2 names are given: 2 stages need the names of 1 layers"),
        (2, Config { dropout: 0.1, ..of(2) }, "does not go with --dropout"),
        (2, Config { order: Order::Tree, ..of(2) }, "does not go with --order"),
    ] {
        let found = refused(ranks, &settings);
        assert!(found.contains(said), "{found}");
    }
    let said = unisono::threads(2, |mut comm| of(2).trainer(&mut comm).map(drop).unwrap_err().to_string());
    assert!(said[0].contains("call Config::parameter_server or Config::pipeline"), "{said:?}");
}

fn diverging_loss_ends_the_run_on_all_ranks() {
    crate::assert_diverges(4, &cut(settings(), 2, "1f1b"));
}

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        losses_and_metrics_match_one_rank,
        optimizer_state_is_sharded_among_the_replicas_of_a_stage,
        transformer_and_cnn_train_in_stages,
        complete_checkpoint_resumes_under_other_strategies,
        invalid_cuts_are_refused_on_all_ranks,
        diverging_loss_ends_the_run_on_all_ranks,
    ];
    tests.extend(tests![run_resumed_in_the_same_world_has_the_same_bits].into_iter().map(Test::deep));
    tests
}
