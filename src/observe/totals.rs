//! The metrics of a rank, summed over all of its communicators, in Prometheus' text format, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use unisono_collectives::Rank;

use super::Observer;
use super::counters::{BOUNDS, bound_us};
use crate::error::ErrorCode;
use crate::record::POINT_TO_POINT;

/// A metric, in the order of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Metric {
    WorldSize,
    Calls,
    Bytes,
    BusBytes,
    Seconds,
    Waits,
    Stragglers,
    Failures,
}

/// The name, the type and the description of each metric.
const METRICS: [(Metric, &str, &str, &str); 8] = [
    (Metric::WorldSize, "unisono_world_size", "gauge", "The number of ranks of the world."),
    (Metric::Calls, "unisono_calls_total", "counter", "Calls that ended without an error."),
    (Metric::Bytes, "unisono_bytes_total", "counter", "Bytes of the arrays of these calls."),
    (
        Metric::BusBytes,
        "unisono_bus_bytes_total",
        "counter",
        "The same times the factor of nccl-tests: divided by the seconds, it is the bus bandwidth.",
    ),
    (
        Metric::Seconds,
        "unisono_call_seconds",
        "histogram",
        "Duration of these calls; one of 13 short calls is timed.",
    ),
    (
        Metric::Waits,
        "unisono_wait_seconds_total",
        "counter",
        "Time spent waiting for the rank `for`, without the first 0.1 ms or so of each wait.",
    ),
    (
        Metric::Stragglers,
        "unisono_stragglers_total",
        "counter",
        "Comparisons of the busy times of all ranks in which the rank `straggler` was one.",
    ),
    (Metric::Failures, "unisono_failures_total", "counter", "Calls that ended with an error, by its code."),
];
/// The parts of a histogram after its buckets: the sum in nanoseconds, and the count.
const SUM: usize = BOUNDS as usize + 1;
const COUNT: usize = SUM + 1;

/// The samples of a rank. The key is the metric, the names of operation and algorithm or of an error, and the other rank or the
/// part of the histogram. Times are in nanoseconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals(BTreeMap<(Metric, (&'static str, &'static str), usize), f64>);

impl Totals {
    pub(super) fn add(&mut self, observer: &Observer) {
        let Some(counters) = &observer.counters else { return };
        if observer.of_world.is_none() {
            self.0.insert((Metric::WorldSize, ("", ""), 0), counters.ranks as f64);
        }
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let mut add = |metric, names, part, more| *self.0.entry((metric, names, part)).or_default() += more;
        for (operation, algorithm, factor, cell) in counters.cells() {
            let (names, bytes) = ((operation, algorithm), of(&cell.bytes));
            add(Metric::Calls, names, 0, of(&cell.calls));
            add(Metric::Bytes, names, 0, bytes);
            add(Metric::BusBytes, names, 0, bytes * factor);
            let mut count = 0.0;
            for (bucket, calls) in cell.buckets.iter().enumerate() {
                count += of(calls);
                add(Metric::Seconds, names, bucket, count);
            }
            add(Metric::Seconds, names, SUM, of(&cell.seconds_ns));
            add(Metric::Seconds, names, COUNT, count);
        }
        let messages = ["send", "receive"].into_iter().zip(&counters.messages);
        for (operation, [calls, bytes]) in messages.filter(|(_, [calls, _])| of(calls) > 0.0) {
            let names = (operation, POINT_TO_POINT);
            add(Metric::Calls, names, 0, of(calls));
            add(Metric::Bytes, names, 0, of(bytes));
            add(Metric::BusBytes, names, 0, of(bytes));
        }
        let by_rank = [(Metric::Waits, &counters.waits_ns), (Metric::Stragglers, &counters.stragglers)];
        for (metric, counters) in by_rank {
            let ranks = counters.iter().enumerate().filter(|(_, counter)| of(counter) > 0.0);
            ranks.for_each(|(rank, counter)| add(metric, ("", ""), observer.in_world(rank), of(counter)));
        }
        let failures = ErrorCode::ALL.into_iter().zip(&counters.failures);
        for (code, counter) in failures.filter(|(_, counter)| of(counter) > 0.0) {
            add(Metric::Failures, (code.name(), ""), 0, of(counter));
        }
    }
}

pub(super) fn text(ranks: &BTreeMap<Rank, Totals>) -> String {
    let mut text = String::new();
    for (metric, name, kind, help) in METRICS {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (rank, totals) in ranks {
            let samples = totals.0.range((metric, ("", ""), 0)..).take_while(|((of, ..), _)| *of == metric);
            for (&(_, names, part), &value) in samples {
                let (suffix, labels) = labels(metric, names, part);
                let is_time = metric == Metric::Waits || metric == Metric::Seconds && part == SUM;
                let value = if is_time { value / 1e9 } else { value };
                let _ = writeln!(text, "{name}{suffix}{{rank=\"{rank}\"{labels}}} {value}");
            }
        }
    }
    text
}

/// Returns the suffix of the name of a sample, and its labels. No value needs escapes: they are names and numbers.
fn labels(
    metric: Metric,
    (name, algorithm): (&'static str, &'static str),
    part: usize,
) -> (&'static str, String) {
    let of_call = || format!(",operation=\"{name}\",algorithm=\"{algorithm}\"");
    match metric {
        Metric::WorldSize => ("", String::new()),
        Metric::Calls | Metric::Bytes | Metric::BusBytes => ("", of_call()),
        Metric::Seconds if part == SUM => ("_sum", of_call()),
        Metric::Seconds if part == COUNT => ("_count", of_call()),
        Metric::Seconds if part < BOUNDS as usize => {
            ("_bucket", format!("{},le=\"{}\"", of_call(), bound_us(part as u32) as f64 / 1e6))
        }
        Metric::Seconds => ("_bucket", format!("{},le=\"+Inf\"", of_call())),
        Metric::Waits => ("", format!(",for=\"{part}\"")),
        Metric::Stragglers => ("", format!(",straggler=\"{part}\"")),
        Metric::Failures => ("", format!(",code=\"{name}\"")),
    }
}
