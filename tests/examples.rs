//! The examples run, at two and at three ranks.

use unisono_testing::launch::example;

#[test]
fn all_reduce() {
    assert!(example("all_reduce", 2).contains("2 ranks, mean 0.5, by "));
    assert!(example("all_reduce", 3).contains("3 ranks, mean 1, by "));
}

#[test]
fn attach() {
    assert!(example("attach", 2).contains("parity 1 are 1, and their numbers add up to 1"));
    assert!(example("attach", 3).contains("parity 0 are 2, and their numbers add up to 2"));
}

#[test]
fn custom_loop() {
    for ranks in [1, 2, 3] {
        assert!(example("custom_loop", ranks).contains("y = 2.000 x + -1.000"));
    }
}

#[test]
fn overlap() {
    for ranks in [1, 2, 3] {
        assert!(example("overlap", ranks).contains("all means right"));
    }
}
