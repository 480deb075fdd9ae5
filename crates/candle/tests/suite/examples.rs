//! The examples run.

use std::fmt::Write as _;

use unisono_testing::launch::{example, example_with};
use unisono_testing::suite::Test;
use unisono_testing::tests;

fn data_parallel() {
    let said = example("data_parallel", 2);
    assert!(said.contains("2 ranks: accuracy 9"), "{said}");
}

fn mirrored() {
    let said = example("mirrored", 2);
    assert!(said.contains("2 ranks"), "{said}");
}

fn pipeline() {
    let said = example("pipeline", 2);
    assert!(said.contains("2 ranks in pipelines of 2: loss "), "{said}");
}

/// A smooth function of two columns is learnt to a tenth of its variance, which is 0.6.
fn regression() {
    let mut table = "x,y,value\n".to_owned();
    for row in 0..1000 {
        let (x, y) = (f64::from(row * 37 % 101) / 101.0, f64::from(row * 53 % 97) / 97.0);
        writeln!(table, "{x},{y},{}", (6.0 * x).sin() + y * y).expect("a string takes everything");
    }
    let directory = tempfile::tempdir().expect("there is a directory");
    let path = directory.path().join("table.csv");
    std::fs::write(&path, table).expect("it can be written");
    let said = example_with("regression", 2, &[path.to_str().expect("a path in UTF-8")]);
    let last = said.lines().find_map(|line| line.strip_prefix("epoch 40: squared error "));
    let error: f64 = last.and_then(|error| error.parse().ok()).unwrap_or(f64::NAN);
    assert!(error < 0.06, "{said}");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![data_parallel, mirrored, pipeline, regression,]
}
