//! Complete runs with batch norm and dropout.

use super::*;
use crate::{last, until};
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Writes small images in MNIST's format whose class is their texture: plain, stripes in two directions, or squares.
fn images(directory: &std::path::Path) -> Source {
    const SIDE: usize = 9;
    for (part, count) in [("train", 120_usize), ("t10k", 70)] {
        let class = |image: usize| image * 7 % 4;
        let mut pixels = Vec::new();
        for image in 0..count {
            pixels.extend((0..SIDE * SIDE).map(|at| {
                let (row, column) = (at / SIDE % 2, at % SIDE % 2);
                let is_bright = [0, row, column, row ^ column][class(image)] == 1;
                (image * 31 + at * 17) as u8 % 60 + if is_bright { 150 } else { 0 }
            }));
        }
        let labels: Vec<_> = (0..count).map(|image| class(image) as u32).collect();
        unisono_testing::idx::write(directory, part, &pixels, &labels);
    }
    Source::Idx(directory.to_owned())
}

/// Runs stop during an epoch, and resume. Fails if running statistics or the step count of dropout are not saved, or if evaluation does not read
/// them.
fn a_resumed_run_ends_with_the_same_bits_and_evaluates_to_the_same_on_any_number_of_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let source = images(directory.path());
    let resnet = Config { hidden: Some(vec![4, 6]), ..Config::new(source.clone(), ModelKind::ResNet) };
    let mlp = Config { hidden: Some(vec![24]), dropout: 0.3, ..Config::new(source.clone(), ModelKind::Mlp) };
    for settings in [resnet, mlp] {
        let settings = Config { epochs: 4, batch_size: 5, learning_rate: 0.4, seed: 5, ..settings };
        let kept = |name: &str| directory.path().join(format!("{name}-{}", settings.model));
        let in_one = Config { checkpoint_dir: Some(kept("one")), ..settings.clone() };
        let whole = last(3, &in_one);
        let in_two = Config { checkpoint_dir: Some(kept("two")), ..settings.clone() };
        until(3, 11, &in_two);
        let resumed = last(3, &Config { resume: true, ..in_two });
        assert_eq!(resumed.parameters_hash, whole.parameters_hash, "{}", settings.model);
        assert_eq!(resumed.last.test_loss.to_bits(), whole.last.test_loss.to_bits());
        assert!(whole.last.test_accuracy > 0.9, "{}: {whole:?}", settings.model);

        let saved = Saved::open(&kept("one")).unwrap();
        assert_eq!(saved.parameters_hash().unwrap(), whole.parameters_hash);
        for ranks in 1..=3 {
            let evaluated =
                unisono::threads(ranks, |mut comm| saved.evaluate(&mut comm, None, Part::Test, &[]).unwrap());
            for tally in evaluated.into_iter().map(|on_rank| on_rank.test.tally) {
                assert_eq!(tally.mean_loss().to_bits(), whole.last.test_loss.to_bits(), "{ranks} ranks");
            }
        }
        // On another number of ranks, the run resumes from the same values.
        let more = Config { checkpoint_dir: Some(kept("one")), resume: true, ..settings.clone() };
        let more = Config { global_batch: Some(15), ..more };
        assert_eq!(last(2, &more).parameters_hash, whole.parameters_hash);
    }
}

/// Trains on half of the digits, with narrow blocks.
fn a_residual_network_learns_digits_within_an_epoch() {
    let options = Options { train_samples: 10_000, test_samples: 500, ..Options::default() };
    let dataset = Arc::new(unisono_data::load(&Source::Digits, &options).unwrap());
    let reports = unisono::threads(2, |mut comm| {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let replica = unisono_candle::model::classifier(
            ModelKind::ResNet,
            Some(&[8, 16, 24]),
            0.0,
            &dataset.kind,
            &Parameters::new(1),
        );
        let shares = Shares { rank, ranks, global_batch: 32, micro_batch: 16, fixed_passes: None };
        let feed = Sampled::new(Arc::clone(&dataset), 1, shares, Threads::Auto, Depth::Auto).placed(None);
        let steps = shares.steps(dataset.train.len()) as u64;
        let rate = Rate::new(Schedule::Cosine, 0.1, 0.1, steps);
        let settings = RunSettings::new(1, 32, sgd(), rate);
        Trainer::new(&mut comm, replica.unwrap(), feed, settings, None).unwrap().run(|_| ()).unwrap().last
    });
    assert!(reports[0].test_accuracy > 0.9, "{reports:?}");
}

pub(crate) fn tests() -> Vec<Test> {
    let mut tests =
        tests![a_resumed_run_ends_with_the_same_bits_and_evaluates_to_the_same_on_any_number_of_ranks];
    let learns = a_residual_network_learns_digits_within_an_epoch;
    tests.push(Test::new("a_residual_network_learns_digits_within_an_epoch", learns).deep());
    tests
}
