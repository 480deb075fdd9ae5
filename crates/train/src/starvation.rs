//! Detects the stage of the input pipeline that training waits for, and suggests a remedy.

use std::thread;

use unisono_data::pipeline::{StageReport, bottleneck};

/// The share of the training time, in percent, that ranks may wait for input without a notice.
const MOST_WAITS_PERCENT: f64 = 10.0;
/// The minimum share of its time that a stage works if it limits training. If all stages work less and ranks wait, stages and training compete for
/// cores.
const LEAST_BUSY: f64 = 0.5;
/// The minimum share of its busy time that a stage computes if its threads fully use their cores.
const COMPUTES: f64 = 0.7;
/// The minimum share of a stage's work that a cache must save in every epoch to be worthwhile.
const WORTH_KEEPING: f64 = 0.3;

/// Returns a notice if ranks waited for input for a large share of an epoch, unless it `is_said` already: it would be the same in every epoch.
pub(crate) fn notice(is_said: &mut bool, waits_percent: f64, stages: &[StageReport]) -> Option<String> {
    if *is_said || waits_percent < MOST_WAITS_PERCENT {
        return None;
    }
    bottleneck(stages).filter(|slowest| slowest.busy >= LEAST_BUSY)?;
    let why = explain_bottleneck(stages, Some(waits_percent))?;
    *is_said = true;
    Some(format!("training waits {waits_percent:.0} % of its time for input: {why}"))
}

/// Explains which stage limits an input pipeline, and how to make it faster. Returns `None` if no stage has threads. `waits_percent` is the share of
/// its time that a consumer waits. If it is given, the explanation includes a sufficient number of threads.
pub fn explain_bottleneck(stages: &[StageReport], waits_percent: Option<f64>) -> Option<String> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let slowest = bottleneck(stages)?;
    let largest = slowest.parts.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let part = largest.map(|(name, share)| format!(", of which {name} takes {:.0} %", 100.0 * share));
    let StageReport { name, threads, busy, .. } = *slowest;
    let found = format!(
        "{name} ({threads} thread{}) is busy {:.0} % of the time{}",
        if threads == 1 { "" } else { "s" },
        100.0 * busy,
        part.unwrap_or_default()
    );
    Some(format!("{found}; {}", remedy(slowest, waits_percent, cores)))
}

fn remedy(slowest: &StageReport, waits_percent: Option<f64>, cores: usize) -> String {
    let &StageReport { name, threads, most_threads, .. } = slowest;
    if name == "source" {
        return "a single thread does this work: in a Rust program, read several files at a time (Pipeline::interleave), or move work to a later \
                stage"
            .to_owned();
    }
    if name == "device" {
        return "copies to the GPU are the limit: let samples have fewer bytes".to_owned();
    }
    if slowest.parts.iter().any(|(part, _)| *part == "servers") {
        return "start more data servers (unisono serve-data --join), or increase their --concurrency"
            .to_owned();
    }
    if slowest.busy < LEAST_BUSY {
        return "no stage works for half of its time, so passing batches on takes the rest: make them larger (--batch-size)"
            .to_owned();
    }
    if threads < most_threads && slowest.processor >= COMPUTES {
        return format!(
            "each thread fills a core, and more may run: use more threads (--input-threads {most_threads})"
        );
    }
    if threads < most_threads {
        return format!(
            "its threads compute for only {:.0} % of that: they wait for something that they share, such as the disk or the cores",
            100.0 * slowest.processor
        );
    }
    if threads < cores {
        let needed = waits_percent
            .map_or(cores, |waits| (threads as f64 / (1.0 - waits / 100.0).max(0.01)).ceil() as usize);
        return format!("use more threads (--input-threads {})", needed.clamp(threads + 1, cores));
    }
    let repeated = |part: &str| ["reading", "decoding", "resizing"].contains(&part);
    let kept: f64 = slowest.parts.iter().filter(|(part, _)| repeated(part)).map(|(_, share)| share).sum();
    let once = if kept >= WORTH_KEEPING { "decode the data once (--snapshot DIR), or " } else { "" };
    format!("it has a thread for each of the {cores} cores: {once}use more machines (unisono serve-data)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &'static str, threads: usize, most_threads: usize, busy: f64) -> StageReport {
        let parts = if name == "batches" { vec![("reading", 0.1), ("decoding", 0.87)] } else { vec![] };
        let (starved, full, ready) = (0.0, 1.0 - busy, 0.0);
        StageReport {
            name,
            threads,
            most_threads,
            elements: 9,
            busy,
            starved,
            full,
            processor: 1.0,
            ready,
            parts,
        }
    }

    #[test]
    fn remedy_for_slow_data_servers_is_more_servers() {
        let mut served = stage("batches", 4, 4, 1.0);
        served.parts = vec![("servers", 1.0)];
        let told = explain_bottleneck(&[served], None).unwrap();
        assert!(told.ends_with("of which servers takes 100 %; start more data servers (unisono serve-data --join), or increase their --concurrency"), "{told}");
    }

    #[test]
    fn notice_is_sent_once_and_only_above_the_threshold() {
        let stages = [stage("source", 1, 1, 0.1), stage("batches", 1, 1, 0.98)];
        let mut is_said = false;
        let mut notice = |waits, stages: &[StageReport]| notice(&mut is_said, waits, stages);
        assert_eq!(notice(9.0, &stages), None);
        assert_eq!(notice(90.0, &[]), None);
        let shares_a_core = stage("batches", 1, 1, 0.2);
        assert_eq!(notice(12.0, &[shares_a_core]), None);
        let said = notice(43.2, &stages).unwrap();
        let found = "training waits 43 % of its time for input: batches (1 thread) is busy 98 % of the time, of which decoding takes 87 %; ";
        assert!(said.starts_with(found), "{said}");
        assert_eq!(notice(90.0, &stages), None);
    }

    #[test]
    fn remedy_fits_the_cause() {
        let remedy = |stage: StageReport, waits| remedy(&stage, waits, 8);
        assert!(remedy(stage("source", 1, 1, 1.0), Some(50.0)).contains("interleave"));
        assert!(remedy(stage("device", 1, 1, 1.0), Some(50.0)).contains("copies to the GPU"));
        assert!(remedy(stage("batches", 3, 3, 1.0), Some(50.0)).ends_with("(--input-threads 6)"));
        assert!(remedy(stage("batches", 3, 3, 1.0), Some(90.0)).ends_with("(--input-threads 8)"));
        assert!(remedy(stage("batches", 3, 3, 1.0), None).ends_with("(--input-threads 8)"));
        assert!(remedy(stage("batches", 3, 8, 1.0), Some(50.0)).ends_with("(--input-threads 8)"));
        let waits = StageReport { processor: 0.4, ..stage("batches", 3, 8, 1.0) };
        let remedied = remedy(waits, None);
        assert!(remedied.contains("only 40 %") && !remedied.contains("--input-threads"), "{remedied}");
        let passes_on = remedy(stage("batches", 8, 8, 0.4), None);
        assert!(passes_on.contains("--batch-size") && !passes_on.contains("machines"), "{passes_on}");
        let decodes = remedy(stage("batches", 8, 8, 1.0), Some(50.0));
        assert!(decodes.contains("8 cores") && decodes.contains("--snapshot"), "{decodes}");
        let augments = StageReport {
            parts: vec![("decoding", 0.1), ("augmenting", 0.9)],
            ..stage("batches", 8, 8, 1.0)
        };
        assert!(!remedy(augments, Some(50.0)).contains("--snapshot"));
    }
}
