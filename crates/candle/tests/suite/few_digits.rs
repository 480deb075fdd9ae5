//! A data set of few digits, in files, also for the tests of the command.

use std::path::PathBuf;

use unisono_data::{Options, Pass, Source, Values};
use unisono_testing::{idx, shared};

/// The numbers of training and test images.
pub(crate) const SAMPLES: [usize; 2] = [2000, 500];

/// Returns the folder. Each rank of a run on generated digits draws ten times as many, which takes longer than a short training.
pub(crate) fn folder() -> PathBuf {
    shared::folder("few-digits", |folder| {
        let [train_samples, test_samples] = SAMPLES;
        let options = Options { train_samples, test_samples, ..Options::default() };
        let drawn = unisono_data::load(&Source::Digits, &options).expect("digits are drawn");
        for (part, split) in [("train", drawn.train), ("t10k", drawn.test)] {
            let all: Vec<_> = (0..split.len()).collect();
            let (values, labels) = split.gather(&all, Pass::Evaluation).expect("they are in memory");
            let Values::Levels(pixels) = values else { panic!("digits are images") };
            idx::write(folder, part, &pixels, &labels);
        }
    })
}
