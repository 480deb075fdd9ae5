//! The example runs.

use unisono_testing::launch::example;

#[test]
fn mirrored() {
    let said = example("mirrored", 2);
    assert!(said.contains("2 ranks"), "{said}");
}
