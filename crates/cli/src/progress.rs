//! A progress bar that also works under mpirun.
//!
//! A launcher forwards the output of its ranks, so a rank's standard error is a pipe even if the launcher's is a terminal. The bar is drawn if either
//! is a terminal.

use std::fmt;
use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::process::parent_id;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

/// The number of times per second that the bar is drawn.
const REDRAWS_PER_SECOND: u8 = 5;

/// Returns the progress bar of an epoch, which is hidden without a terminal.
pub(super) fn bar() -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else if launcher_has_terminal() {
        ProgressDrawTarget::term_like_with_hz(Box::new(PassedOn), REDRAWS_PER_SECOND)
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

/// Standard error, for a launcher that forwards it to a terminal.
struct PassedOn;

impl fmt::Debug for PassedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard error, forwarded to a terminal")
    }
}

impl PassedOn {
    fn control(&self, count: usize, code: char) -> io::Result<()> {
        if count == 0 { Ok(()) } else { self.write_str(&format!("\x1b[{count}{code}")) }
    }
}

impl TermLike for PassedOn {
    fn width(&self) -> u16 {
        80
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.control(lines, 'A')
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.control(lines, 'B')
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.control(columns, 'C')
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.control(columns, 'D')
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.write_str(&format!("{line}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        io::stderr().write_all(text.as_bytes())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write_str("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        io::stderr().flush()
    }
}
