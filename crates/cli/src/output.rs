//! All output of the command.
//!
//! `print!`, `println!` and `eprintln!` are the macros below. The standard library's panic when the reader has closed
//! the pipe or the disk is full.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};

use signal_hook::low_level::exit;

/// Writes to standard output.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::out(format_args!($($text)*)) };
}

/// Writes a line to standard output.
macro_rules! println {
    ($($text:tt)*) => { $crate::output::out(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes a line to standard error.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::complain(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes to standard output, or ends the process.
pub(super) fn out(text: fmt::Arguments<'_>) {
    // One write: other ranks may print at the same moment.
    let text = text.to_string();
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        end(&error);
    }
}

/// Writes to standard error. There is nowhere to report a failure to do so.
pub(super) fn complain(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

/// Ends the process after standard output has failed: silently and with 0 if the reader has closed the pipe, as `head` does;
/// otherwise with an error. It does not unwind: other threads may be ranks, which would wait for this one.
pub(super) fn end(error: &io::Error) -> ! {
    if error.kind() == ErrorKind::BrokenPipe {
        exit(0);
    }
    eprintln!("unisono: cannot write to standard output: {error}");
    exit(1)
}

/// The width of a table in columns: 80, or the terminal's width if that is larger.
pub(super) fn columns() -> usize {
    terminal_columns().unwrap_or(0).max(LEAST_COLUMNS)
}

/// Wraps a line to the terminal's width and indents continuation lines. Files and pipes get the line unwrapped.
pub(super) fn broken(line: &str, indent: usize) -> String {
    terminal_columns().map_or_else(|| line.to_owned(), |columns| broken_at(line, indent, columns))
}

const LEAST_COLUMNS: usize = 80;

/// The width of the terminal, if standard output is one.
fn terminal_columns() -> Option<usize> {
    let stdout = io::stdout();
    let size = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok())??;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

fn broken_at(line: &str, indent: usize, columns: usize) -> String {
    let (mut text, mut used) = (String::new(), 0);
    for word in line.split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if used > indent && used + length > columns {
            text.truncate(text.trim_end().len());
            text += &format!("\n{:indent$}", "");
            used = indent;
        }
        text += word;
        used += word.chars().count();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_broken_between_words() {
        let line = "ok    cores        this machine has two of them";
        assert_eq!(
            broken_at(line, 19, 36),
            "ok    cores        this machine has\n                   two of them"
        );
        assert_eq!(broken_at(line, 19, 47), line);
        // A terminal that is too narrow for a word.
        assert_eq!(broken_at("a verylongword b", 2, 4), "a verylongword\n  b");
    }
}
