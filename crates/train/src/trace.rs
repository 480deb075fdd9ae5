//! Traces of a run's time, for Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing`, with all ranks in one timeline.
//!
//! Every rank has its own [`Recorder`]. Nothing is exchanged or written until the end, when [`gather()`] collects all traces
//! on rank 0 and [`merge()`] writes them to one file.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Instant;
//! use unisono_train::trace::{self, Lane, Recorder};
//!
//! let traces = unisono::threads(2, |mut comm| -> unisono::Result<_> {
//!     comm.barrier()?;
//!     let mut recorder = Recorder::new(comm.rank(), Instant::now(), 10_000);
//!     let began = Instant::now();
//!     // … the forward pass …
//!     recorder.span(Lane::Compute, "forward", began, Instant::now());
//!     trace::gather(&mut comm, recorder)
//! });
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("trace.json");
//! for traces in traces {
//!     // `None`, except on rank 0.
//!     if let Some(traces) = traces? {
//!         trace::merge(&path, &traces)?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use unisono::{Communicator, Error, Rank};

/// A kind of activity; each lane is drawn as a row of its own, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Waiting for the next batch, or making it.
    Input,
    /// The work of the stages of the input pipeline in an epoch.
    Stages,
    /// Forward and backward passes.
    Compute,
    /// The all-reduce of each bucket.
    Communication,
    /// The optimizer's update.
    Update,
    /// Writing or reading a checkpoint.
    Checkpoint,
}

impl Lane {
    fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Stages => "input stages",
            Self::Compute => "compute",
            Self::Communication => "communication",
            Self::Update => "update",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// Records the spans of one rank.
///
/// The memory is allocated at the start, and recording a span only pushes it: about a tenth of a microsecond.
#[derive(Debug)]
pub struct Recorder {
    rank: Rank,
    origin: Instant,
    spans: Vec<Span>,
    limit: usize,
    left_out: usize,
}

/// An activity with its duration.
#[derive(Debug)]
struct Span {
    lane: Lane,
    name: Cow<'static, str>,
    began_ns: u64,
    ended_ns: u64,
}

impl Recorder {
    /// Creates a recorder for `rank` with at most `limit` spans (about 50 bytes each); later ones are only counted.
    ///
    /// `origin` is time 0 of the trace. Take it right after a [barrier](Communicator::barrier): then the times of ranks are
    /// comparable, as exactly as they leave a barrier together.
    ///
    /// # Panics
    /// If there is no memory for this many spans.
    pub fn new(rank: Rank, origin: Instant, limit: usize) -> Self {
        Self { rank, origin, spans: Vec::with_capacity(limit), limit, left_out: 0 }
    }

    /// Records that the rank was busy with `name` from `began` to `ended`. A part before the origin is cut off.
    ///
    /// Spans of a lane may overlap; they are then drawn in separate rows.
    pub fn span(&mut self, lane: Lane, name: impl Into<Cow<'static, str>>, began: Instant, ended: Instant) {
        if self.spans.len() == self.limit {
            self.left_out += 1;
            return;
        }
        let since_origin = |time: Instant| time.saturating_duration_since(self.origin).as_nanos() as u64;
        let began_ns = since_origin(began);
        let ended_ns = since_origin(ended).max(began_ns);
        self.spans.push(Span { lane, name: name.into(), began_ns, ended_ns });
    }

    /// Returns the number of spans beyond the limit. The trace shows it too, next to the name of the rank.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Returns this rank's trace for [`merge()`], one event per line, as JSON.
    pub fn into_bytes(self) -> Vec<u8> {
        let Self { rank, mut spans, left_out, .. } = self;
        spans.sort_by_key(|span| (span.lane, span.began_ns, span.ended_ns));
        let mut lines = Vec::new();
        let left_out =
            if left_out == 0 { String::new() } else { format!(" ({left_out} later spans left out)") };
        name(&mut lines, "process", rank, 0, &format!("rank {rank}{left_out}"));

        let mut first_row = 1;
        for lane in spans.chunk_by(|one, next| one.lane == next.lane) {
            // The end of the last span of each row: a viewer interprets overlapping spans in a row as nested calls.
            let mut ends_ns = Vec::new();
            for span in lane {
                let row = ends_ns.iter().position(|&end_ns| end_ns <= span.began_ns).unwrap_or(ends_ns.len());
                if row == ends_ns.len() {
                    ends_ns.push(0);
                    name(&mut lines, "thread", rank, first_row + row, &row_name(span.lane, row));
                }
                ends_ns[row] = span.ended_ns;
                span.write(&mut lines, rank, first_row + row);
            }
            first_row += ends_ns.len();
        }
        lines
    }
}

impl Span {
    /// A complete event (`X`), with times in microseconds.
    fn write(&self, lines: &mut Vec<u8>, rank: Rank, row: usize) {
        let us = |ns: u64| ns as f64 / 1000.0;
        let event = json!({
            "ph": "X", "pid": rank, "tid": row, "cat": self.lane.name(), "name": self.name,
            "ts": us(self.began_ns), "dur": us(self.ended_ns - self.began_ns),
        });
        line(lines, &event);
    }
}

/// The events that name a rank (a "process") or a row (a "thread"), and determine their order.
fn name(lines: &mut Vec<u8>, what: &str, rank: Rank, row: usize, name: &str) {
    let about = |key: &str, arguments: Value| {
        let name = format!("{what}_{key}");
        json!({ "ph": "M", "pid": rank, "tid": row, "name": name, "args": arguments })
    };
    let place = if what == "process" { rank } else { row };
    line(lines, &about("name", json!({ "name": name })));
    line(lines, &about("sort_index", json!({ "sort_index": place })));
}

fn row_name(lane: Lane, row: usize) -> String {
    if row == 0 { lane.name().to_owned() } else { format!("{} {}", lane.name(), row + 1) }
}

fn line(lines: &mut Vec<u8>, event: &Value) {
    serde_json::to_writer(&mut *lines, event).expect("a vector takes everything");
    lines.push(b'\n');
}

/// The size of the blocks in which traces are sent: a trace may be large, and every rank holds a block of every other.
const BLOCK_BYTES: usize = 1 << 18;

/// Gathers the traces of all ranks on rank 0, in the order of ranks. All ranks call it.
///
/// # Errors
/// As [`Communicator::all_reduce`].
pub fn gather(comm: &mut Communicator, recorder: Recorder) -> Result<Option<Vec<Vec<u8>>>, Error> {
    gather_bytes(comm, &recorder.into_bytes(), BLOCK_BYTES)
}

/// Gathers bytes on rank 0, any number from each rank, at most `block` of each rank at a time.
pub(crate) fn gather_bytes(
    comm: &mut Communicator,
    own: &[u8],
    block: usize,
) -> Result<Option<Vec<Vec<u8>>>, Error> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let mut lengths = vec![0_u64; ranks];
    lengths[rank] = own.len() as u64;
    comm.all_gather(&mut lengths)?;
    let lengths: Vec<_> = lengths.into_iter().map(|length| length as usize).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);

    let mut blocks = vec![0; ranks * block];
    let mut gathered = vec![Vec::new(); ranks];
    for start in (0..longest).step_by(block) {
        let part = |length: usize| start.min(length)..(start + block).min(length);
        let sent = &own[part(own.len())];
        blocks[rank * block..][..sent.len()].copy_from_slice(sent);
        comm.gather(&mut blocks, 0)?;
        if rank == 0 {
            for (of, bytes) in gathered.iter_mut().enumerate() {
                bytes.extend_from_slice(&blocks[of * block..][..part(lengths[of]).len()]);
            }
        }
    }
    Ok((rank == 0).then_some(gathered))
}

/// Writes the traces of all ranks, as returned by [`gather()`], to one file: under a temporary name first, so that `path` is
/// either complete or unchanged.
///
/// # Errors
/// If the file cannot be written; the error names it.
pub fn merge(path: &Path, traces: &[Vec<u8>]) -> io::Result<()> {
    let unfinished = beside(path);
    write(&unfinished, traces).and_then(|()| fs::rename(&unfinished, path)).map_err(|error| {
        // Report why there is no trace, not why the partial file cannot be removed.
        let _ = fs::remove_file(&unfinished);
        io::Error::new(error.kind(), format!("cannot write `{}`: {error}", path.display()))
    })
}

/// Returns an unused name in the same directory.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    path.with_file_name(name)
}

fn write(path: &Path, traces: &[Vec<u8>]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut before: &[u8] = b"\n";
    for event in traces.iter().flat_map(|trace| trace.split_inclusive(|&byte| byte == b'\n')) {
        file.write_all(before)?;
        file.write_all(event.trim_ascii_end())?;
        before = b",\n";
    }
    file.write_all(b"\n]}\n")?;
    file.flush()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns a recorder, and the time this many microseconds after its origin.
    fn recorder(rank: Rank, limit: usize) -> (Recorder, impl Fn(u64) -> Instant) {
        let origin = Instant::now();
        (Recorder::new(rank, origin, limit), move |us| origin + Duration::from_micros(us))
    }

    fn events(trace: &[u8]) -> Vec<Value> {
        let lines = trace.split_inclusive(|&byte| byte == b'\n');
        lines.map(|line| serde_json::from_slice(line).expect("an event a line")).collect()
    }

    /// Returns the values of a key in all events of a kind.
    fn said(events: &[Value], ph: &str, name: Option<&str>, say: impl Fn(&Value) -> Value) -> Vec<Value> {
        let asked = |event: &&Value| event["ph"] == ph && name.is_none_or(|name| event["name"] == name);
        events.iter().filter(asked).map(say).collect()
    }

    #[test]
    fn spans_keep_their_times_and_rows_their_names() {
        let (mut recorder, at) = recorder(3, 10);
        recorder.span(Lane::Update, "update", at(40), at(45));
        recorder.span(Lane::Compute, String::from("forward \"1\"\n"), at(10), at(30));
        let events = events(&recorder.into_bytes());
        assert!(events.iter().all(|event| event["pid"] == 3));
        let names = said(&events, "M", Some("process_name"), |event| event["args"]["name"].clone());
        assert_eq!(names, ["rank 3"]);
        let rows =
            said(&events, "M", Some("thread_name"), |event| json!([event["tid"], event["args"]["name"]]));
        assert_eq!(rows, [json!([1, "compute"]), json!([2, "update"])]);
        let spans = said(&events, "X", None, |event| {
            json!([event["tid"], event["cat"], event["name"], event["ts"], event["dur"]])
        });
        assert_eq!(
            spans,
            [json!([1, "compute", "forward \"1\"\n", 10.0, 20.0]), json!([2, "update", "update", 40.0, 5.0])]
        );
    }

    #[test]
    fn spans_that_overlap_have_rows_of_their_own() {
        let (mut recorder, at) = recorder(0, 10);
        for (name, began, ended) in [("c", 20, 40), ("a", 0, 20), ("b", 10, 30), ("d", 30, 50)] {
            recorder.span(Lane::Communication, name, at(began), at(ended));
        }
        recorder.span(Lane::Checkpoint, "e", at(0), at(1));
        let events = events(&recorder.into_bytes());
        let rows = said(&events, "X", None, |event| json!([event["name"], event["tid"]]));
        let expected = [("a", 1), ("b", 2), ("c", 1), ("d", 2), ("e", 3)];
        assert_eq!(rows, expected.map(|row| json!(row)));
        let names = said(&events, "M", Some("thread_name"), |event| event["args"]["name"].clone());
        assert_eq!(names, ["communication", "communication 2", "checkpoint"]);
    }

    #[test]
    fn what_lies_before_the_origin_or_ends_before_it_begins_has_no_length() {
        let origin = Instant::now() + Duration::from_secs(60);
        let mut recorder = Recorder::new(0, origin, 10);
        let at = |us| origin + Duration::from_micros(us);
        recorder.span(Lane::Input, "before", Instant::now(), Instant::now());
        recorder.span(Lane::Input, "backwards", at(9), at(5));
        let events = events(&recorder.into_bytes());
        let times = said(&events, "X", None, |event| json!([event["ts"], event["dur"]]));
        assert_eq!(times, [json!([0.0, 0.0]), json!([9.0, 0.0])]);
    }

    #[test]
    fn a_full_recorder_counts_what_it_leaves_out() {
        let (mut recorder, at) = recorder(1, 2);
        for step in 0..5 {
            recorder.span(Lane::Compute, format!("step {step}"), at(step), at(step + 1));
        }
        assert_eq!((recorder.spans.capacity(), recorder.left_out()), (2, 3));
        let events = events(&recorder.into_bytes());
        assert_eq!(said(&events, "X", None, |event| event["name"].clone()), ["step 0", "step 1"]);
        let names = said(&events, "M", Some("process_name"), |event| event["args"]["name"].clone());
        assert_eq!(names, ["rank 1 (3 later spans left out)"]);
    }

    #[test]
    fn traces_of_all_ranks_come_to_rank_0_and_into_one_file() {
        let traces = unisono::threads(3, |mut comm| {
            let (mut recorder, at) = recorder(comm.rank(), 100);
            // As many spans as the number of the rank, so that sizes differ, and one is empty.
            for span in 0..comm.rank() as u64 {
                recorder.span(Lane::Compute, "forward", at(span), at(span + 1));
            }
            gather(&mut comm, recorder).unwrap()
        });
        assert_eq!(traces.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false]);

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.json");
        fs::write(&path, "an older trace").unwrap();
        merge(&path, traces[0].as_ref().unwrap()).unwrap();
        let trace: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(said(events, "X", None, |event| event["pid"].clone()), [1, 2, 2]);
        let names = said(events, "M", Some("process_name"), |event| event["args"]["name"].clone());
        assert_eq!(names, ["rank 0", "rank 1", "rank 2"]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn bytes_are_gathered_whole_however_they_are_cut() {
        let bytes = |rank: usize| -> Vec<u8> { (0..rank * 7).map(|i| (i * 31 + rank) as u8).collect() };
        for block in [1, 3, 7, 14, 1000] {
            let gathered = unisono::threads(4, |mut comm| {
                let own = bytes(comm.rank());
                gather_bytes(&mut comm, &own, block).unwrap()
            });
            assert_eq!(gathered[0].as_ref().unwrap(), &(0..4).map(bytes).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let message = merge(&directory.path().join("no/trace.json"), &[]).unwrap_err().to_string();
        assert!(message.starts_with("cannot write `") && message.contains("no/trace.json"), "{message}");
    }
}
