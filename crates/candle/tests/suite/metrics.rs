//! Metrics of a run, on any number of ranks.

use std::sync::{Arc, Mutex};

use unisono_candle::Config;
use unisono_candle::model::ModelKind;
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::metrics::{F1, Measured, Metrics, Named, TopK};
use unisono_train::{EpochReport, Evaluation, Event, Order};

/// Returns the metrics of each evaluation, and the report of the last epoch.
fn run(ranks: usize, metrics: Metrics) -> (Vec<Evaluation>, EpochReport) {
    let settings = Config {
        epochs: 1,
        hidden: Some(vec![16]),
        // Gives identical bits on any number of ranks.
        order: Order::Tree,
        shards: 4,
        global_batch: Some(256),
        evaluate_every: Some(30),
        metrics: metrics.into_iter().map(Named).collect(),
        ..Config::new(crate::digits(), ModelKind::Mlp)
    };
    let told = Mutex::new(Vec::new());
    let summaries = unisono::threads(ranks, |mut comm| {
        let rank = comm.rank();
        let trainer = settings.trainer(&mut comm).unwrap();
        let summary = trainer.run(|event| {
            if let Event::Evaluation(evaluation) = event
                && rank == 0
            {
                told.lock().unwrap().push(evaluation);
            }
        });
        summary.unwrap()
    });
    assert!(summaries.iter().all(|summary| summary.last.metrics == summaries[0].last.metrics));
    (told.into_inner().unwrap(), summaries[0].last.clone())
}

fn metrics_of_each_evaluation_are_the_same_on_any_number_of_ranks() {
    let metrics = || -> Metrics { vec![Arc::new(TopK(1)), Arc::new(TopK(3)), Arc::new(F1)] };
    let (evaluations, last) = run(1, metrics());
    assert_eq!(evaluations.len(), 2);
    for (found, accuracy) in evaluations
        .iter()
        .map(|found| (&found.metrics, found.test_accuracy))
        .chain([(&last.metrics, last.test_accuracy)])
    {
        assert_eq!(found.keys().collect::<Vec<_>>(), ["f1", "top-1", "top-3"]);
        assert_eq!(found["top-1"], accuracy, "of equal outputs the lower class counts for both");
        assert!(found["top-3"] > found["top-1"] && (found["f1"] - accuracy).abs() < 0.1, "{found:?}");
    }
    for ranks in [2, 4] {
        let (others, others_last) = run(ranks, metrics());
        assert_eq!(
            (others, others_last.metrics),
            (evaluations.clone(), last.metrics.clone()),
            "{ranks} ranks"
        );
    }
    let (without, last_without) = run(2, Vec::new());
    assert_eq!(without[0].test_loss, evaluations[0].test_loss, "measuring changes nothing");
    assert_eq!(last_without.metrics, Measured::new());
}

pub(crate) fn tests() -> Vec<Test> {
    tests![metrics_of_each_evaluation_are_the_same_on_any_number_of_ranks,]
}
