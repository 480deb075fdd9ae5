//! Loom models: every order in which two ranks observe each other's calls.

use std::sync::Arc;

use super::super::*;

/// If two ranks make different calls, at least one of them detects it.
#[test]
fn at_least_one_rank_detects_a_mismatch() {
    loom::model(|| {
        let new = || Lockstep {
            announced: AtomicU64::new(0),
            histories: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        let ranks = Arc::new([new(), new()]);
        let other = Arc::clone(&ranks);
        let call = |ranks: &[Lockstep; 2], own: usize, history| {
            let number = ranks[own].announce(history);
            ranks[1 - own].agrees(number, history)
        };
        let thread = loom::thread::spawn(move || call(&other, 1, 22));
        let agrees = call(&ranks, 0, 11);
        assert!(!(agrees && thread.join().unwrap()), "both continue with different calls");
    });
}
