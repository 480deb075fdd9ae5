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
            keep_panic(text_of(panic));
            before(panic);
        }));
    });
}

fn text_of(panic: &PanicHookInfo<'_>) -> String {
    let text = panic.payload_as_str().and_then(|text| text.lines().next()).unwrap_or("no text");
    let place = panic.location().map_or(String::new(), |place| format!(" ({place})"));
    format!("it panicked: {text}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::panicked;

    #[test]
    fn panic_text_is_kept_for_its_thread() {
        keep();
        let thread = std::thread::spawn(|| {
            let _ = std::panic::catch_unwind(|| panic!("on {}\nand more", "purpose"));
            panicked()
        });
        let text = thread.join().unwrap();
        assert!(text.starts_with("it panicked: on purpose (src/watchdog/panics.rs:"), "{text}");
        assert_eq!(panicked(), "it panicked");
    }
}
