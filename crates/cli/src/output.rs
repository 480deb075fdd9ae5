//! All output of the command.
//!
//! `print!`, `println!` and `eprintln!` are the macros below, because the standard library's panic if the reader has closed the pipe or the disk is
//! full. `println!` wraps its lines for people. [`row`] and `print!` write machine-readable output without changes.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
#[cfg(feature = "candle")]
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use signal_hook::low_level::exit;

use super::world::STOP;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Human-readable text
    Table,
    /// One JSON object per line
    Json,
    /// Comma-separated values with a header
    Csv,
}

impl Format {
    /// Returns the parser for commands whose results do not fit into rows with the same columns.
    #[cfg(feature = "candle")]
    pub(super) fn without_csv() -> impl TypedValueParser<Value = Self> {
        let names =
            [Self::Table, Self::Json].map(|format| format.to_possible_value().expect("it has a name"));
        let format = |name: String| Self::from_str(&name, false);
        PossibleValuesParser::new(names).try_map(format)
    }
}

macro_rules! print {
    ($($text:tt)*) => { $crate::output::out(format_args!($($text)*)) };
}

macro_rules! println {
    ($($text:tt)*) => { $crate::output::print_wrapped(&format!($($text)*)) };
}

macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::print_error(&format!($($text)*)) };
}

/// Whether the reader of standard output has closed the pipe of a command that continues.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Writes to standard output, or ends the process. A command that saves its work when it is stopped is stopped instead if the reader has closed the
/// pipe, and its further output is dropped.
pub(super) fn out(text: fmt::Arguments<'_>) {
    if IS_CLOSED.load(Ordering::Relaxed) {
        return;
    }
    // A single write, because other ranks may print at the same moment.
    let text = text.to_string();
    let mut stdout = io::stdout().lock();
    let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) else { return };
    match STOP.get().filter(|_| error.kind() == ErrorKind::BrokenPipe) {
        Some(stop) => {
            IS_CLOSED.store(true, Ordering::Relaxed);
            stop.store(true, Ordering::Relaxed);
        }
        None => end(&error),
    }
}

/// Writes a JSON object as a line of standard output.
pub(super) fn row<T: Serialize>(row: &T) {
    print!("{}\n", serde_json::to_string(row).expect("rows have no maps with odd keys"));
}

/// Writes rows to standard output. `table` writes them as text.
pub(super) fn rows<T: Serialize>(rows: &[T], format: Format, table: impl FnOnce()) {
    match format {
        Format::Table => table(),
        Format::Json => rows.iter().for_each(row),
        Format::Csv => csv(rows, true),
    }
}

/// Writes rows to standard output as CSV, possibly after a header.
pub(super) fn csv<T: Serialize>(rows: &[T], has_header: bool) {
    let mut writer = csv::WriterBuilder::new().has_headers(has_header).from_writer(Vec::new());
    for row in rows {
        writer.serialize(row).expect("a row has plain fields");
    }
    let text = writer.into_inner().expect("memory takes all text");
    print!("{}", String::from_utf8(text).expect("rows are text"));
}

pub(super) fn print_wrapped(text: &str) {
    print!("{}\n", wrapped(text, INDENT, most_columns()));
}

/// Writes a message to standard error. Wraps it if that is a terminal; in a log, a message is one line. Errors are ignored, since there is nowhere to
/// report them.
pub(super) fn print_error(text: &str) {
    let columns = terminal_columns(io::stderr()).map_or(usize::MAX, |columns| columns.min(MOST_COLUMNS));
    let _ = io::stderr().write_all((wrapped(text, INDENT, columns) + "\n").as_bytes());
}

/// Ends the process after standard output has failed. Exits silently with 0 if the reader has closed the pipe, as `head` does, and otherwise with an
/// error. It does not unwind, because other threads may be ranks, which would wait for this one.
pub(super) fn end(error: &io::Error) -> ! {
    if error.kind() == ErrorKind::BrokenPipe {
        exit(0);
    }
    eprintln!("unisono: cannot write to standard output: {error}");
    exit(1)
}

/// Returns the width of a table in columns: 80, or the terminal's width if that is larger.
pub(super) fn columns() -> usize {
    terminal_columns(io::stdout()).unwrap_or(0).max(LEAST_COLUMNS)
}

/// Wraps a line of standard output, and indents continuation lines.
pub(super) fn broken(line: &str, indent: usize) -> String {
    wrapped(line, indent, most_columns())
}

const LEAST_COLUMNS: usize = 80;
/// The maximum line width of text for people, as in the help. It also applies to files and pipes, because a launcher forwards its ranks' results to a
/// terminal of unknown width.
const MOST_COLUMNS: usize = 100;
const INDENT: usize = 4;

fn most_columns() -> usize {
    terminal_columns(io::stdout()).unwrap_or(MOST_COLUMNS).min(MOST_COLUMNS)
}

fn terminal_columns(stream: impl AsFd + IsTerminal) -> Option<usize> {
    let size = stream.is_terminal().then(|| rustix::termios::tcgetwinsize(&stream).ok())??;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

fn wrapped(text: &str, indent: usize, columns: usize) -> String {
    let lines: Vec<_> = text.split('\n').map(|line| broken_at(line, indent, columns)).collect();
    lines.join("\n")
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
    fn lines_are_broken_between_words() {
        let line = "ok    cores        this machine has two of them";
        assert_eq!(
            broken_at(line, 19, 36),
            "ok    cores        this machine has\n                   two of them"
        );
        assert_eq!(broken_at(line, 19, 47), line);
        // The terminal is too narrow for a word.
        assert_eq!(broken_at("a verylongword b", 2, 4), "a verylongword\n  b");
    }
}
