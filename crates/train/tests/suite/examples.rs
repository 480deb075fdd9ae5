//! The examples run.

use unisono_testing::launch::example;
use unisono_testing::suite::Test;
use unisono_testing::tests;

fn mirrored() {
    let said = example("mirrored", 2);
    assert!(said.contains("2 ranks"), "{said}");
}

fn pipeline() {
    let said = example("pipeline", 2);
    assert!(said.contains("2 ranks in pipelines of 2: loss "), "{said}");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![mirrored, pipeline,]
}
