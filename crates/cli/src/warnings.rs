//! Prints warnings that the libraries report to `tracing`.

use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Writes warnings and errors of Unisono's crates to standard error from now on.
pub(super) fn show() {
    let subscribed = tracing::subscriber::set_global_default(ToStandardError::default());
    subscribed.expect("nothing else subscribes in this program");
}

/// The time during which a line is not repeated. Several threads may report the same line, and a server may be retried every second.
const REPEATED_AFTER: Duration = Duration::from_secs(60);

#[derive(Default)]
struct ToStandardError {
    /// The lines of the last minute.
    written: Mutex<Vec<(Instant, String)>>,
}

impl Subscriber for ToStandardError {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("unisono")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let line = format!("unisono: {}{}", line.message, line.fields);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.retain(|(at, _)| at.elapsed() < REPEATED_AFTER);
        if !written.iter().any(|(_, other)| *other == line) {
            eprintln!("{line}");
            written.push((Instant::now(), line));
        }
    }

    // Unisono's crates create no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " ({name}: {value:?})"),
        };
        written.expect("a string takes all text");
    }
}
