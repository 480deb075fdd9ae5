//! Optimizers in complete runs: averages of parameters, and incompatible options.

use std::path::Path;
use std::sync::Arc;

use unisono_candle::model::ModelKind;
use unisono_candle::{Config, Part, Saved};
use unisono_strategies::{Staleness, Strategy};
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::optimizer::{Averaged, NamedRule, UpdateRule};

use crate::{last, until};

fn settings(rule: Arc<dyn UpdateRule>) -> Config {
    let hidden = Some(vec![12]);
    Config {
        epochs: 1,
        hidden,
        optimizer: NamedRule(rule),
        weight_decay: 0.0,
        ..Config::new(crate::digits(), ModelKind::Mlp)
    }
}

fn named(text: &str) -> Arc<dyn UpdateRule> {
    text.parse::<NamedRule>().unwrap().0
}

fn averaged(decay: f32) -> Arc<dyn UpdateRule> {
    Arc::new(Averaged::new(named("adamw"), decay))
}

fn at(directory: &Path, settings: &Config) -> Config {
    let checkpoint_dir = Some(directory.to_owned());
    Config { checkpoint_dir, resume: true, ..settings.clone() }
}

fn averages_are_evaluated_saved_and_resumed() {
    let settings = Config { learning_rate: 0.01, ..settings(averaged(0.95)) };
    let kept = tempfile::tempdir().unwrap();
    let ended = last(2, &at(kept.path(), &settings));
    let plain = last(2, &Config { optimizer: "adamw".parse().unwrap(), ..settings.clone() });
    assert_eq!(ended.parameters_hash, plain.parameters_hash, "an average does not change the parameters");
    assert_ne!(ended.last.test_loss, plain.last.test_loss);

    let saved = Saved::open(kept.path()).unwrap();
    let evaluated =
        unisono::threads(2, |mut comm| saved.evaluate(&mut comm, None, Part::Test, &[]).unwrap()).remove(0);
    assert_eq!(evaluated.test.tally.mean_loss(), ended.last.test_loss);

    let sharded = Config { shard_optimizer: true, ..settings.clone() };
    let kept = tempfile::tempdir().unwrap();
    until(2, 9, &at(kept.path(), &sharded));
    let resumed = last(2, &at(kept.path(), &settings));
    for again in [last(2, &sharded), resumed] {
        assert_eq!(again.parameters_hash, ended.parameters_hash);
        assert_eq!(again.last.test_loss, ended.last.test_loss);
    }
}

fn incompatible_optimizer_options_are_named_on_all_ranks() {
    let lamb = settings(named("lamb"));
    let average = settings(averaged(0.9));
    let central = Some(Strategy::CentralStorage);
    for (settings, said) in [
        (Config { shard_optimizer: true, ..lamb.clone() }, "lamb needs the norms of whole parameters"),
        (Config { strategy: central, ..lamb }, "with central storage a rank updates parts"),
        (Config { strategy: central, ..average.clone() }, "remove --ema"),
        (Config { local_steps: Some(2), ..average }, "remove --ema"),
        (self::settings(averaged(1.0)), "the decay of the average is 1: it must be from 0 to below 1"),
    ] {
        let refused = unisono::threads(2, |mut comm| settings.trainer(&mut comm).map(drop));
        for error in refused {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(said) || error.starts_with("rank 0"), "{error}");
        }
    }
    for (rule, said) in [(named("lion"), "lion has no form for that"), (averaged(0.9), "remove --ema")] {
        let settings = Config { staleness: Staleness::Steps(2), ..settings(rule) };
        let refused = unisono::threads(3, |mut comm| settings.parameter_server(&mut comm).map(drop));
        let lowest = refused[0].as_ref().unwrap_err().to_string();
        assert!(lowest.contains(said), "{lowest}");
        assert!(refused.iter().all(Result::is_err));
    }
}

fn custom_rule_sets_learning_rates_and_decay() {
    use unisono_train::optimizer::Factors;
    let usual = settings(named("sgd"));
    let with = |factors: fn(&str, &[usize]) -> Factors| {
        let directory = tempfile::tempdir().unwrap();
        last(2, &at(directory.path(), &Config { factors: Some(factors), ..usual.clone() }));
        let saved = Saved::open(directory.path()).unwrap();
        saved.parameters.into_iter().map(|array| (array.shape.len(), array.values)).collect::<Vec<_>>()
    };
    let frozen = with(|_, shape| Factors { rate: if shape.len() < 2 { 0.0 } else { 1.0 }, decay: 1.0 });
    assert!(frozen.iter().any(|(rank, values)| *rank == 1 && !values.is_empty()));
    for (rank, values) in frozen {
        // Biases are initially zero.
        assert_eq!(values.iter().all(|&value| value == 0.0), rank < 2);
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        averages_are_evaluated_saved_and_resumed,
        incompatible_optimizer_options_are_named_on_all_ranks,
        custom_rule_sets_learning_rates_and_decay,
    ]
}
