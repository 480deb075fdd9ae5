//! Prometheus' text format, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use unisono_collectives::Rank;

use super::counters::{BOUNDS, bound_us};
use super::totals::{Sums, Totals};

/// Returns the metrics of some ranks.
pub(super) fn text(ranks: &BTreeMap<Rank, Totals>) -> String {
    let mut text = Text(String::new());
    text.family("unisono_world_size", "gauge", "The number of ranks of the world.");
    for (rank, totals) in ranks {
        text.sample("unisono_world_size", *rank, &[], totals.world_size);
    }
    text.by_call("unisono_calls_total", "Calls that ended without an error.", ranks, |sums| {
        sums.calls as f64
    });
    text.by_call("unisono_bytes_total", "Bytes of the arrays of these calls.", ranks, |sums| {
        sums.bytes as f64
    });
    text.by_call(
        "unisono_bus_bytes_total",
        "The same times the factor of nccl-tests: divided by the seconds, it is the bus bandwidth.",
        ranks,
        |sums| sums.bus_bytes,
    );
    text.seconds(ranks);
    text.by_rank(
        "unisono_wait_seconds_total",
        "Time spent waiting for the rank `for`, without the first 0.1 ms or so of each wait.",
        "for",
        ranks,
        |totals| totals.waits_ns.iter().map(|(rank, &ns)| (*rank, ns as f64 / 1e9)).collect(),
    );
    text.by_rank(
        "unisono_stragglers_total",
        "Comparisons of the busy times of all ranks in which the rank `straggler` was one.",
        "straggler",
        ranks,
        |totals| totals.stragglers.iter().map(|(rank, &times)| (*rank, times as f64)).collect(),
    );
    text.family("unisono_failures_total", "counter", "Calls that ended with an error, by its code.");
    for (rank, totals) in ranks {
        for (code, &failures) in &totals.failures {
            text.sample("unisono_failures_total", *rank, &[("code", code)], failures);
        }
    }
    text.0
}

/// Returns all kinds of calls of all ranks.
fn calls(
    ranks: &BTreeMap<Rank, Totals>,
) -> impl Iterator<Item = (Rank, (&'static str, &'static str), &Sums)> {
    ranks
        .iter()
        .flat_map(|(&rank, totals)| totals.calls.iter().map(move |(names, sums)| (rank, *names, sums)))
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Writes a sample. No label value needs escapes: they are names and numbers.
    fn sample(&mut self, name: &str, rank: Rank, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.line(format_args!("{name}{{rank=\"{rank}\""));
        labels.iter().for_each(|(label, of)| self.line(format_args!(",{label}=\"{of}\"")));
        self.line(format_args!("}} {value}\n"));
    }

    /// Writes a histogram of the duration of calls; messages have none.
    fn seconds(&mut self, ranks: &BTreeMap<Rank, Totals>) {
        self.family(
            "unisono_call_seconds",
            "histogram",
            "Duration of these calls; one of 13 short calls is timed.",
        );
        for (rank, (operation, algorithm), sums) in calls(ranks) {
            let labels = [("operation", operation), ("algorithm", algorithm)];
            let mut count = 0;
            if sums.buckets.iter().all(|&calls| calls == 0) {
                continue;
            }
            for (bucket, calls) in (0..).zip(sums.buckets) {
                count += calls;
                let bound = if bucket < BOUNDS {
                    (bound_us(bucket) as f64 / 1e6).to_string()
                } else {
                    "+Inf".to_owned()
                };
                let [operation, algorithm] = labels;
                self.sample(
                    "unisono_call_seconds_bucket",
                    rank,
                    &[operation, algorithm, ("le", &bound)],
                    count,
                );
            }
            self.sample("unisono_call_seconds_sum", rank, &labels, sums.seconds_ns as f64 / 1e9);
            self.sample("unisono_call_seconds_count", rank, &labels, count);
        }
    }

    fn by_call(&mut self, name: &str, help: &str, ranks: &BTreeMap<Rank, Totals>, of: impl Fn(&Sums) -> f64) {
        self.family(name, "counter", help);
        for (rank, (operation, algorithm), sums) in calls(ranks) {
            self.sample(name, rank, &[("operation", operation), ("algorithm", algorithm)], of(sums));
        }
    }

    fn by_rank(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        ranks: &BTreeMap<Rank, Totals>,
        of: impl Fn(&Totals) -> Vec<(Rank, f64)>,
    ) {
        self.family(name, "counter", help);
        for (rank, totals) in ranks {
            for (other, value) in of(totals) {
                self.sample(name, *rank, &[(label, &other.to_string())], value);
            }
        }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("a string takes all");
    }
}
