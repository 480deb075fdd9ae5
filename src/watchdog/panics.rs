//! The panic hook, which keeps the text of a panic for the failure report of its rank.

use std::panic::PanicHookInfo;
use std::sync::Once;

use crate::status::keep_panic;

/// Installs the hook, which keeps texts for [`crate::status::panicked`] and then calls the previous hook.
pub(super) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            keep_panic(words(panic));
            before(panic);
        }));
    });
}

fn words(panic: &PanicHookInfo<'_>) -> String {
    let said = panic.payload_as_str().and_then(|said| said.lines().next()).unwrap_or("no text");
    let place = panic.location().map_or(String::new(), |place| format!(" ({place})"));
    format!("it panicked: {said}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::panicked;

    #[test]
    fn what_a_panic_said_is_kept_for_its_thread() {
        keep();
        let thread = std::thread::spawn(|| {
            let _ = std::panic::catch_unwind(|| panic!("on {}\nand more", "purpose"));
            panicked()
        });
        let said = thread.join().unwrap();
        assert!(said.starts_with("it panicked: on purpose (src/watchdog/panics.rs:"), "{said}");
        assert_eq!(panicked(), "it panicked");
    }
}
