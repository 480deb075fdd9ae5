//! How this process speaks of what went wrong, and with which code it then ends.

use std::io::Write as _;

/// The exit code of a process that ends because a rank has failed.
pub(crate) const FAILED: i32 = 1;

/// Writes to standard error in one piece: other ranks may be saying something at the same moment.
pub(crate) fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
