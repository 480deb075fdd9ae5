//! A progress bar that also works under mpirun.
//!
//! A launcher forwards the output of its ranks, so a rank's standard error is a pipe even if the launcher's is a terminal. The bar is drawn if either
//! is a terminal.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::parent_id;

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The number of times per second that the bar is drawn.
const REDRAWS_PER_SECOND: u8 = 5;

/// Returns the progress bar of an epoch, which is hidden without a terminal.
pub(super) fn bar() -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else if launcher_has_terminal() {
        // `stderr()` would hide the bar, because standard error of this process is a pipe.
        ProgressDrawTarget::term_like_with_hz(Box::new(Term::stderr()), REDRAWS_PER_SECOND)
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{prefix} {bar:32} {percent:>3} %  {msg}  {eta} left");
    ProgressBar::with_draw_target(None, target).with_style(style.expect("the template is right"))
}

/// Returns whether standard error of the parent process, a launcher, is a terminal.
fn launcher_has_terminal() -> bool {
    let stderr = fs::read_link(format!("/proc/{}/fd/2", parent_id()));
    stderr.is_ok_and(|path| path.starts_with("/dev/pts") || path.starts_with("/dev/tty"))
}
