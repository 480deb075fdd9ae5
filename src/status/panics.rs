//! The text of a panic, for the failure report of its rank.

use std::cell::RefCell;

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

pub(crate) fn keep_panic(text: String) {
    PANIC.with(|last| last.replace(Some(text)));
}

/// Returns the cause of failure of a rank whose thread panics.
pub(crate) fn panicked() -> String {
    let text = PANIC.try_with(|last| last.borrow().clone()).ok().flatten();
    text.unwrap_or_else(|| "it panicked".to_owned())
}
