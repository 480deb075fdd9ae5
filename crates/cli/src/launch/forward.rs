//! Forwards the output of ranks line by line with their numbers, and writes their logs. A progress bar is a line that ends with a carriage return.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Output {
    pub(super) prefix: Prefix,
    pub(super) logs: Option<PathBuf>,
}

/// The lines that are prefixed with the number of their rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Prefix {
    None,
    /// The lines of ranks other than 0. Programs usually print on rank 0, perhaps a progress bar.
    Others,
    All,
}

impl Output {
    /// Creates the logs of ranks.
    pub(super) fn prepare(&self, mut ranks: Range<usize>) -> io::Result<()> {
        let Some(folder) = &self.logs else { return Ok(()) };
        fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
        ranks.try_for_each(|rank| log(folder, rank).map(drop))
    }

    fn prefixes(&self, rank: usize) -> bool {
        self.prefix == Prefix::All || self.prefix == Prefix::Others && rank > 0
    }

    /// Redirects a rank's output to pipes, if it is prefixed or logged.
    pub(super) fn capture(&self, rank: usize, command: &mut Command) {
        if self.prefixes(rank) || self.logs.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
    }

    /// Forwards the pipes of a rank until the rank and its descendants have closed them.
    pub(super) fn forward(&self, rank: usize, child: &mut Child) -> io::Result<Vec<JoinHandle<()>>> {
        let log = self.logs.as_ref().map(|folder| log(folder, rank)).transpose()?;
        let log = log.map(|file| Arc::new(Mutex::new(file)));
        let prefix = if self.prefixes(rank) { format!("[{rank}] ") } else { String::new() };
        Ok(lines(child, &prefix, log.as_ref()))
    }
}

/// Opens the log of a rank. A restarted rank or job appends to it, since the log has the reason for the restart.
fn log(folder: &Path, rank: usize) -> io::Result<File> {
    let path = folder.join(format!("rank-{rank}.log"));
    File::options().create(true).append(true).open(&path).map_err(|error| cannot_write(&path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write `{}`: {error}", path.display()))
}

/// Forwards the captured output of a child by whole lines, so that lines of different processes do not mix.
pub(super) fn lines(child: &mut Child, prefix: &str, log: Option<&Arc<Mutex<File>>>) -> Vec<JoinHandle<()>> {
    let stdout = child.stdout.take().map(|from| spawn(from, io::stdout(), prefix, log));
    let stderr = child.stderr.take().map(|from| spawn(from, io::stderr(), prefix, log));
    stdout.into_iter().chain(stderr).collect()
}

/// The maximum length of a line that is forwarded as a whole.
const MOST_BYTES: usize = 1 << 16;

/// Appends the next line, including its end. Returns false at the end of the output.
fn read_line(from: &mut BufReader<impl Read>, line: &mut Vec<u8>) -> io::Result<bool> {
    let start = line.len();
    while line.len() - start < MOST_BYTES {
        let bytes = match from.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let count = end.map_or(bytes.len(), |end| end + 1);
        line.extend_from_slice(&bytes[..count]);
        from.consume(count);
        if line.ends_with(b"\r") && from.buffer().first() == Some(&b'\n') {
            line.push(b'\n');
            from.consume(1);
        }
        if end.is_some() || count == 0 {
            break;
        }
    }
    Ok(line.len() > start)
}

fn spawn(
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    prefix: &str,
    log: Option<&Arc<Mutex<File>>>,
) -> JoinHandle<()> {
    let (prefix, log) = (prefix.to_owned(), log.cloned());
    thread::spawn(move || {
        let (mut from, mut line) = (BufReader::new(from), prefix.clone().into_bytes());
        while read_line(&mut from, &mut line).is_ok_and(|is_there| is_there) {
            if let Some(log) = &log {
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                // A full disk ends the log, but not the job.
                let _ = log.write_all(&line[prefix.len()..]);
            }
            // Another rank's line would continue this one. Without a prefix, it may be a prompt.
            if !prefix.is_empty() && !line.ends_with(b"\n") && !line.ends_with(b"\r") {
                line.push(b'\n');
            }
            // Without a reader, this thread closes the pipe. The rank then gets the error of a direct write.
            if to.write_all(&line).and_then(|()| to.flush()).is_err() {
                return;
            }
            line.truncate(prefix.len());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_either_character_or_are_long() {
        let long = "x".repeat(MOST_BYTES + 9);
        let text = format!("\r10 %\r20 %\r\n{long}\nend");
        // A small buffer, so that lines are read in parts.
        let mut from = BufReader::with_capacity(8, text.as_bytes());
        let mut lines = Vec::new();
        let mut line = Vec::new();
        while read_line(&mut from, &mut line).unwrap() {
            lines.push(String::from_utf8(std::mem::take(&mut line)).unwrap());
        }
        assert_eq!(lines.concat(), text);
        assert_eq!(lines[..2], ["\r", "10 %\r"]);
        assert!(lines.iter().all(|line| line.len() < MOST_BYTES + 8));
        assert_eq!(lines.last().map(String::as_str), Some("end"));
    }
}
