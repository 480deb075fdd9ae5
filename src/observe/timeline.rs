//! The trace of a rank: its latest calls and the program's spans, in the format of Chrome and Perfetto.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use serde_json::{Value, json};
use unisono_collectives::Rank;

use super::Ended;
use crate::codes::Codes;
use crate::system::{now_ns, replace_file};

/// The number of events kept: about 6 MiB.
const MOST_EVENTS: usize = 1 << 16;
/// Time 0 of all traces, in seconds since 1970: the start of 2026. A double has a resolution of only 256 ns for times since 1970.
const ORIGIN_UNIX_S: i128 = 1_767_225_600;

thread_local! {
    static THREAD: Arc<Thread> = Arc::new(Thread::current());
    /// The timeline of the rank whose calls this thread makes.
    static CURRENT: RefCell<Option<Arc<Timeline>>> = const { RefCell::new(None) };
}

#[derive(Debug)]
pub(super) struct Timeline {
    rank: Rank,
    started: Moment,
    kept: Mutex<Kept>,
}

/// A moment on three clocks.
#[derive(Debug)]
struct Moment {
    instant: Instant,
    /// The monotonic clock.
    ns: u64,
    /// Nanoseconds since [`ORIGIN_UNIX_S`].
    since_origin: i128,
    /// The time between the first and the last read of the clocks, in which other processes may have run.
    within_ns: u64,
}

impl Moment {
    fn now() -> Self {
        let (ns, instant) = (now_ns(), Instant::now());
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since_origin = since_1970.as_nanos() as i128 - ORIGIN_UNIX_S * 1_000_000_000;
        Self { instant, ns, since_origin, within_ns: now_ns() - ns }
    }
}

#[derive(Debug)]
struct Kept {
    events: VecDeque<Event>,
    left_out: u64,
    /// True if there are events that [`Timeline::write`] has not written.
    is_new: bool,
}

#[derive(Debug)]
struct Event {
    began_ns: u64,
    ended_ns: u64,
    thread: Arc<Thread>,
    what: What,
}

/// A thread, which may have ended.
#[derive(Debug)]
struct Thread {
    /// The system's number, which needs a system call.
    number: u64,
    name: String,
}

impl Thread {
    fn current() -> Self {
        let number = rustix::thread::gettid().as_raw_nonzero().get() as u64;
        let name = std::thread::current().name().map_or_else(|| format!("thread {number}"), str::to_owned);
        Self { number, name }
    }
}

#[derive(Debug)]
enum What {
    Span(Cow<'static, str>),
    Call { communicator: Arc<str>, sequence: u64, codes: Codes, size_bytes: usize, label: Option<String> },
}

impl Timeline {
    pub(super) fn new(rank: Rank) -> Arc<Self> {
        let moments = (0..10).map(|_| Moment::now());
        let started = moments.min_by_key(|moment| moment.within_ns).expect("there are several");
        let events = VecDeque::with_capacity(MOST_EVENTS);
        let kept = Mutex::new(Kept { events, left_out: 0, is_new: false });
        Arc::new(Self { rank, started, kept })
    }

    /// Records a call that this thread has made.
    pub(super) fn call(
        self: &Arc<Self>,
        communicator: &Arc<str>,
        ended: &Ended,
        (began_ns, ended_ns): (u64, u64),
        label: Option<String>,
    ) {
        // The spans of this thread belong to the rank from now on.
        CURRENT.with_borrow_mut(|current| {
            if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, self)) {
                *current = Some(Arc::clone(self));
            }
        });
        let Ended { sequence, codes, size_bytes, .. } = *ended;
        let communicator = Arc::clone(communicator);
        self.add(began_ns, ended_ns, What::Call { communicator, sequence, codes, size_bytes, label });
    }

    pub(super) fn span(&self, name: Cow<'static, str>, began: Instant, ended: Instant) {
        self.add(self.ns_of(began), self.ns_of(ended), What::Span(name));
    }

    fn add(&self, began_ns: u64, ended_ns: u64, what: What) {
        let thread = THREAD.with(Arc::clone);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.events.len() == MOST_EVENTS {
            kept.events.pop_front();
            kept.left_out += 1;
        }
        kept.events.push_back(Event { began_ns, ended_ns: ended_ns.max(began_ns), thread, what });
        kept.is_new = true;
    }

    /// Returns the nanoseconds of the system clock at a moment.
    fn ns_of(&self, at: Instant) -> u64 {
        let Moment { instant, ns, .. } = self.started;
        let after = at.saturating_duration_since(instant).as_nanos() as u64;
        let before = instant.saturating_duration_since(at).as_nanos() as u64;
        (ns + after).saturating_sub(before)
    }

    /// Writes the events to `trace-rank-R.json`, one per line, unless the file has all of them.
    pub(super) fn write(&self, folder: &Path) -> std::io::Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.is_new {
            return Ok(());
        }
        kept.is_new = false;
        let left_out = match kept.left_out {
            0 => String::new(),
            count => format!(" ({count} earlier events left out)"),
        };
        let process = format!("rank {}{left_out}", self.rank);
        let mut lines = vec![self.name("process_name", self.rank as u64, &process)];
        // The system reuses the numbers of threads that have ended.
        let threads: BTreeMap<_, _> =
            kept.events.iter().map(|event| (event.thread.number, &event.thread.name)).collect();
        lines.extend(threads.into_iter().map(|(number, name)| self.name("thread_name", number, name)));
        lines.extend(kept.events.iter().map(|event| self.line(event)));
        drop(kept);
        let mut text = b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n".to_vec();
        for (place, line) in lines.iter().enumerate() {
            let before = if place == 0 { "" } else { ",\n" };
            write!(text, "{before}{line}").expect("writing to a vector does not fail");
        }
        text.extend(b"\n]}\n");
        let written = replace_file(&folder.join(format!("trace-rank-{}.json", self.rank)), &text, 0o666);
        if written.is_err() {
            // The next write may succeed, once a full disk has space again for example.
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).is_new = true;
        }
        written
    }

    fn name(&self, what: &str, thread: u64, name: &str) -> Value {
        json!({ "ph": "M", "pid": self.rank, "tid": thread, "name": what, "args": { "name": name } })
    }

    /// Returns a complete event (`X`).
    fn line(&self, event: &Event) -> Value {
        let Event { began_ns, ended_ns, thread, what } = event;
        let Moment { ns, since_origin, .. } = self.started;
        let since_origin = since_origin + i128::from(*began_ns) - i128::from(ns);
        let (ts, dur) = (since_origin as f64 / 1000.0, (ended_ns - began_ns) as f64 / 1000.0);
        let (category, name, arguments) = match what {
            What::Span(name) => ("span", &**name, json!({})),
            What::Call { communicator, sequence, codes, size_bytes, label } => {
                let (algorithm, dtype) = (codes.method(), codes.dtype());
                // Identical on all ranks that made the call.
                let call = format!("{communicator} #{sequence}");
                let arguments = json!({
                    "call": call, "communicator": &**communicator, "sequence": sequence, "bytes": size_bytes,
                    "type": dtype, "algorithm": algorithm, "label": label,
                });
                ("call", codes.operation(), arguments)
            }
        };
        json!({
            "ph": "X", "pid": self.rank, "tid": thread.number, "cat": category, "name": name, "ts": ts, "dur": dur,
            "args": arguments,
        })
    }
}

/// Returns the timeline of the rank whose calls this thread makes.
pub(super) fn of_thread() -> Option<Arc<Timeline>> {
    CURRENT.with_borrow(Clone::clone)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(timeline: &Timeline) -> Vec<Value> {
        let folder = tempfile::tempdir().unwrap();
        timeline.write(folder.path()).unwrap();
        let file = std::fs::read(folder.path().join("trace-rank-3.json")).unwrap();
        let trace: Value = serde_json::from_slice(&file).unwrap();
        trace["traceEvents"].as_array().unwrap().clone()
    }

    #[test]
    fn span_times_use_the_common_clock() {
        let timeline = Timeline::new(3);
        let at = |us| timeline.ns_of(timeline.started.instant + Duration::from_micros(us));
        timeline.add(at(100), at(350), What::Span("forward".into()));
        let events = read(&timeline);
        let [process, thread, span] = &events[..] else { panic!("{events:?}") };
        assert_eq!((&process["args"]["name"], &thread["name"]), (&json!("rank 3"), &json!("thread_name")));
        assert_eq!(
            (&span["name"], &span["pid"], &span["dur"]),
            (&json!("forward"), &json!(3), &json!(250.0))
        );
        assert_eq!(span["tid"], thread["tid"]);
        let unix_us = span["ts"].as_f64().unwrap() + ORIGIN_UNIX_S as f64 * 1e6;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((unix_us / 1e6 - now).abs() < 60.0, "{unix_us}");
    }

    #[test]
    fn latest_events_are_kept_and_dropped_ones_counted() {
        let timeline = Timeline::new(3);
        for number in 0..MOST_EVENTS as u64 + 5 {
            timeline.add(number, number + 1, What::Span("step".into()));
        }
        let events = read(&timeline);
        assert_eq!(events.len(), MOST_EVENTS + 2);
        assert_eq!(events[0]["args"]["name"], "rank 3 (5 earlier events left out)");
        assert_eq!(timeline.kept.lock().unwrap().events.capacity(), MOST_EVENTS, "no allocation");
    }

    #[test]
    fn threads_without_kept_events_are_left_out() {
        let timeline = Timeline::new(3);
        std::thread::scope(|scope| drop(scope.spawn(|| timeline.add(0, 1, What::Span("step".into())))));
        for number in 0..MOST_EVENTS as u64 {
            timeline.add(number, number + 1, What::Span("step".into()));
        }
        let names = read(&timeline).into_iter().filter(|event| event["name"] == "thread_name").count();
        assert_eq!(names, 1);
    }

    #[test]
    fn unchanged_trace_is_not_rewritten() {
        let (timeline, folder) = (Timeline::new(3), tempfile::tempdir().unwrap());
        timeline.write(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "there is nothing to write");
    }

    #[test]
    fn trace_that_could_not_be_written_is_written_later() {
        let (timeline, folder) = (Timeline::new(3), tempfile::tempdir().unwrap());
        timeline.add(1, 2, What::Span("step".into()));
        timeline.write(&folder.path().join("missing")).unwrap_err();
        assert_eq!(read(&timeline).len(), 3);
    }
}
