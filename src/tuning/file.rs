//! The constants as a human-readable TOML file, with one line for each range of sizes.

use std::fmt::Write as _;
use std::str::FromStr;

use serde::Deserialize;
use toml::{Spanned, Value};
use unisono_collectives::model::{Link, Range};

use super::{Reach, Section, Tuning};
use crate::size;

/// An error in a tuning file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct InvalidFile {
    /// The line, counted from 1.
    pub line: usize,
    /// The invalid value, and the expected one.
    pub what: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    shm: Option<FileShm>,
    threads: Option<FileSection>,
    mpi: Option<FileSection>,
    network: Option<FileSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileShm {
    slice: Option<FileSection>,
    registered: Option<FileSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSection {
    #[serde(default)]
    measured: String,
    messages: Spanned<Vec<Spanned<Message>>>,
    one_pass: Option<Spanned<Vec<Spanned<Pass>>>>,
    hand_over_us: Option<Latency>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    up_to: UpTo,
    alpha_us: f64,
    move_gb_per_s: f64,
    reduce_gb_per_s: f64,
}

/// A range of sizes reduced in a single pass.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pass {
    up_to: UpTo,
    alpha_us: f64,
    gb_per_s: f64,
}

impl From<Message> for Range {
    fn from(Message { up_to, alpha_us, move_gb_per_s, reduce_gb_per_s }: Message) -> Self {
        Self { up_to_bytes: up_to.0, alpha_us, move_gb_per_s, reduce_gb_per_s }
    }
}

impl From<Pass> for Range {
    fn from(Pass { up_to, alpha_us, gb_per_s }: Pass) -> Self {
        Self { up_to_bytes: up_to.0, alpha_us, move_gb_per_s: gb_per_s, reduce_gb_per_s: gb_per_s }
    }
}

/// The largest size of a range: a number of bytes, a text such as 8K, or "any" for the last range.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct UpTo(usize);

const ANY: &str = "any";

impl TryFrom<Value> for UpTo {
    type Error = String;

    fn try_from(size: Value) -> Result<Self, String> {
        let (bytes, given) = match size {
            Value::Integer(bytes) => (usize::try_from(bytes).ok(), bytes.to_string()),
            Value::String(text) if text == ANY => (Some(usize::MAX), String::new()),
            Value::String(text) => (size::bytes(&text), format!("{text:?}")),
            _ => (None, "neither a number nor a string".to_owned()),
        };
        let expected = || format!("up_to is {given}, but should be a size such as 512, \"8K\" or \"any\"");
        bytes.map(Self).ok_or_else(expected)
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "f64")]
struct Latency(f64);

impl TryFrom<f64> for Latency {
    type Error = String;

    fn try_from(us: f64) -> Result<Self, String> {
        let valid = us.is_finite() && us >= 0.0;
        valid.then_some(Self(us)).ok_or_else(|| format!("{us} us, but a latency is 0 or above"))
    }
}

/// Parses the sections of a file.
///
/// # Errors
/// [`InvalidFile`] if it is not TOML, or a value is invalid.
pub fn read(text: &str) -> Result<Vec<(Reach, Section)>, InvalidFile> {
    let invalid = |at: usize, what: String| {
        let breaks = text.bytes().take(at).filter(|&byte| byte == b'\n');
        InvalidFile { line: 1 + breaks.count(), what }
    };
    let file: File = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        invalid(at, error.message().replace('\n', "; "))
    })?;
    let (slice, registered) = file.shm.map_or((None, None), |shm| (shm.slice, shm.registered));
    let sections = [slice, registered, file.threads, file.mpi, file.network];
    let mut read = Vec::new();
    for (reach, section) in Reach::ALL.into_iter().zip(sections) {
        let Some(FileSection { measured, messages, one_pass, hand_over_us }) = section else { continue };
        let unexpected_one_pass = one_pass.as_ref().filter(|_| !reach.shares_memory()).map(Spanned::span);
        if let Some(span) = unexpected_one_pass {
            let what = format!("[{}] cannot have one_pass: these ranks share no memory", reach.name());
            return Err(invalid(span.start, what));
        }
        let messages = link(messages, invalid)?;
        let one_pass = match one_pass {
            Some(ranges) => Some(link(ranges, invalid)?),
            None => super::default_section(reach).one_pass,
        };
        let hand_over_us = hand_over_us.map(|Latency(us)| us);
        read.push((reach, Section { messages, one_pass, hand_over_us, measured }));
    }
    Ok(read)
}

fn link<L: Into<Range>>(
    lines: Spanned<Vec<Spanned<L>>>,
    invalid: impl Fn(usize, String) -> InvalidFile,
) -> Result<Link, InvalidFile> {
    let begin = lines.span().start;
    let at: Vec<_> = lines.get_ref().iter().map(|line| line.span().start).collect();
    let ranges = lines.into_inner().into_iter().map(|line| line.into_inner().into());
    Link::new(ranges.collect()).map_err(|error| match error.range {
        Some(range) => invalid(at[range], error.what),
        None => invalid(begin, format!("the last range must be for all sizes: up_to = \"{ANY}\"")),
    })
}

fn up_to(bytes: usize) -> String {
    let text = if bytes == usize::MAX { ANY.to_owned() } else { size::text(bytes) };
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text } else { format!("\"{text}\"") }
}

/// Formats sections as a file.
pub fn write(sections: &[(Reach, Section)]) -> String {
    let mut text = HEAD.to_owned();
    for (reach, Section { messages, one_pass, hand_over_us, measured }) in sections {
        let _ = writeln!(text, "\n[{}]\nmeasured = {}", reach.name(), quoted(measured));
        if let Some(hand_over_us) = hand_over_us {
            let _ = writeln!(text, "hand_over_us = {}", figure(*hand_over_us));
        }
        write_ranges(&mut text, "messages", messages, |range| {
            let (moved, reduced) = (figure(range.move_gb_per_s), figure(range.reduce_gb_per_s));
            format!("move_gb_per_s = {moved:>6}, reduce_gb_per_s = {reduced:>6}")
        });
        if let Some(one_pass) = one_pass {
            let rate = |range: &Range| format!("gb_per_s = {:>6}", figure(range.reduce_gb_per_s));
            write_ranges(&mut text, "one_pass", one_pass, rate);
        }
    }
    text
}

/// Writes one line for each range, with the text of its rates.
fn write_ranges(text: &mut String, name: &str, link: &Link, rates: impl Fn(&Range) -> String) {
    let _ = writeln!(text, "{name} = [");
    for range in link.ranges() {
        let (up_to, alpha_us, rates) = (up_to(range.up_to_bytes), figure(range.alpha_us), rates(range));
        let _ = writeln!(text, "    {{ up_to = {up_to:>6}, alpha_us = {alpha_us:>6}, {rates} }},");
    }
    *text += "]\n";
}

const HEAD: &str = "\
# The cost of communication between ranks, for `auto` and for predictions. A missing section keeps its default.
# `unisono tune` writes such a file, which is used if the environment variable UNISONO_TUNING names it. Unless that is
# set, the first program on a machine writes one to the user's cache, and the next ones use it.
#
# messages: a message takes alpha_us, plus its bytes divided by the rate at which they are moved or reduced.
# one_pass: the cost of each other rank in an all-reduce without messages, by the size of the part that a rank reduces.
# hand_over_us: the time of a context switch from a waiting rank to the next, if there are more ranks than cores.
# up_to is the largest size of a range, in bytes: 512, \"8K\", \"1M\"; the last range is for \"any\".
";

/// Formats a number with three or four digits.
fn figure(value: f64) -> String {
    let digits = [10.0, 100.0, 1000.0].iter().filter(|&&limit| value < limit).count();
    format!("{value:.digits$}", digits = digits.max(1))
}

/// Formats a TOML basic string, which escapes as a JSON string does.
fn quoted(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("\"{}\"", plain.replace('\\', "\\\\").replace('"', "\\\""))
}

impl FromStr for Tuning {
    type Err = InvalidFile;

    /// Parses the text of a tuning file. Settings that it does not contain keep their defaults.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::default().with(read(text)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Vec<(Reach, Section)> {
        Reach::ALL.map(|reach| (reach, super::super::default_section(reach))).to_vec()
    }

    #[test]
    fn written_constants_are_parsed_unchanged() {
        let text = write(&defaults());
        assert_eq!(write(&read(&text).unwrap()), text);
        assert_eq!(text.parse(), Ok(Tuning::default()), "the defaults have no more digits than a file");
        assert!(text.lines().all(|line| line.len() < 120), "{text}");
    }

    #[test]
    fn context_switch_time_is_written_and_parsed() {
        let section = Section { hand_over_us: Some(0.834), ..super::super::default_section(Reach::Mpi) };
        let text = write(&[(Reach::Mpi, section.clone())]);
        assert_eq!(read(&text), Ok(vec![(Reach::Mpi, section)]));
        let tuning: Tuning = text.parse().unwrap();
        assert_eq!(tuning.machine("mpi", crate::call::Memory::Slice, 2).hand_over_us, 0.834);
        let usual = Tuning::default().machine("mpi", crate::call::Memory::Slice, 2).hand_over_us;
        assert_eq!(tuning.machine("shm", crate::call::Memory::Slice, 2).hand_over_us, usual);
        let network = Section { hand_over_us: Some(4.0), ..super::super::default_section(Reach::Network) };
        let tuning = tuning.with([(Reach::Network, network)]);
        assert_eq!(tuning.machine("shm+mpi", crate::call::Memory::Slice, 1).hand_over_us, 4.0);
        assert_eq!(tuning.machine("shm", crate::call::Memory::Slice, 2).hand_over_us, usual);
    }

    #[test]
    fn missing_sections_keep_their_defaults() {
        let text = "[mpi]\nmessages = [\n{ up_to = \"any\", alpha_us = 3, move_gb_per_s = 1, reduce_gb_per_s = 0.5 },\n]";
        let tuning: Tuning = text.parse().unwrap();
        assert_eq!(tuning.section(Reach::Threads), Tuning::default().section(Reach::Threads));
        assert_eq!(tuning.section(Reach::Mpi).messages.time_us(1000, true), 5.0);
    }

    #[test]
    fn errors_name_the_value_and_its_line() {
        let file = |lines: &str| format!("# a comment\n[network]\nmessages = [\n{lines}\n]\n");
        let line = |up_to: &str, alpha: &str, rate: &str| {
            format!(
                "{{ up_to = {up_to}, alpha_us = {alpha}, move_gb_per_s = {rate}, reduce_gb_per_s = 1 }},\n"
            )
        };
        let open = line("\"any\"", "1", "1");
        for (text, number, expected) in [
            (file(&line("\"8X\"", "1", "1")), 4, "up_to is \"8X\", but should be a size such as 512, \"8K\""),
            (
                file(&line("true", "1", "1")),
                4,
                "up_to is neither a number nor a string, but should be a size",
            ),
            (
                file(&line("\"any\"", "-1", "1")),
                4,
                "a latency of -1 us, but it must be finite and not negative",
            ),
            (
                file(&(line("8", "1", "1") + &line("\"any\"", "1", "0"))),
                5,
                "a rate of 0 GB/s, but it must be finite and above 0",
            ),
            (
                file(&(line("8", "1", "1") + &line("8", "1", "1") + &open)),
                5,
                "it ends at 8 bytes, but the one before it ends at 8",
            ),
            (file(&line("8", "1", "1")), 3, "the last range must be for all sizes"),
            (file(""), 3, "the last range must be for all sizes"),
            (file("{ up_to = 8, alpha = 1 }"), 4, "unknown field `alpha`"),
            (file("{ up_to = 8 }"), 4, "missing field `alpha_us`"),
            ("[mpi]\nhand_over_us = -1".to_owned(), 2, "-1 us, but a latency is 0 or above"),
            ("[tcp]\n".to_owned(), 1, "unknown field `tcp`, expected one of `shm`"),
            (file(&open) + "one_pass = []", 7, "[network] cannot have one_pass"),
            ("\n\n[mpi\n".to_owned(), 3, "unclosed table"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.line == number && error.what.contains(expected), "{error}, in\n{text}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}
