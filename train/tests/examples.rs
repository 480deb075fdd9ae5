//! The examples run.

use unisono_testing::launch::example;

#[test]
fn mirrored() {
    let said = example("mirrored", 2);
    assert!(said.contains("2 ranks"), "{said}");
}

#[test]
fn pipeline() {
    let said = example("pipeline", 2);
    assert!(said.contains("2 ranks in pipelines of 2: loss "), "{said}");
}
