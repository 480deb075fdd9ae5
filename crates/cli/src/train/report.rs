//! Progress and results of a run, as text or JSON.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::parent_id;
use std::time::Instant;

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use unisono::size::approximate;
use unisono_train::metrics::Measured;
use unisono_train::{
    Best, EndedEarly, EpochReport, Evaluation, Event, StepEvent, Stopped, Straggler, StragglerReport,
    Summary, WorkerReport, WorkersReport,
};

use super::{Args, Format};
use crate::output;

pub(super) struct Reporter {
    is_json: bool,
    epochs: usize,
    /// Whether all ranks hold the parameters.
    is_mirrored: bool,
    bar: ProgressBar,
    began: Instant,
}

/// The checkpoint that a run resumes from.
#[derive(Serialize)]
struct Resumed {
    step: u64,
    epoch: usize,
}

#[derive(Serialize)]
struct Line<'a, T> {
    event: &'static str,
    #[serde(flatten)]
    figures: &'a T,
}

impl Reporter {
    /// Creates an output that shows a progress bar in addition to text.
    pub(super) fn new(args: &Args, is_mirrored: bool) -> Self {
        let is_json = args.format == Format::Json;
        let bar = if is_json { ProgressBar::hidden() } else { bar() };
        Self { is_json, epochs: args.options.settings.epochs, is_mirrored, bar, began: Instant::now() }
    }

    pub(super) fn report(&mut self, event: &Event) {
        match event {
            Event::Step(StepEvent { epoch, step, steps, loss, .. }) => {
                self.bar.set_length(steps.unwrap_or(*step) as u64);
                self.bar.set_prefix(format!("epoch {epoch:>2}/{}", self.epochs));
                self.bar.set_message(format!("loss {loss:.4}"));
                self.bar.set_position(*step as u64);
            }
            Event::Resumed { step, epoch } => {
                // A complete run was saved before the epoch that would follow its last one.
                let (step, epoch) = (*step, (*epoch).min(self.epochs));
                let text = || format!("resuming after step {step}, in epoch {epoch}");
                self.print("resumed", &Resumed { step, epoch }, text);
            }
            // Standard output is reserved for results.
            Event::Notice(notice) => self.bar.suspend(|| eprintln!("unisono: {notice}")),
            Event::Stragglers(report) => match (self.is_json, &report.slowest) {
                (true, _) => print_json("stragglers", report),
                (false, Some(slowest)) => {
                    self.bar.suspend(|| eprintln!("unisono: {}", straggler(report, slowest)));
                }
                (false, None) => {}
            },
            Event::Workers(report) => self.print("workers", report, || workers(report)),
            Event::Evaluation(report) => self.print("evaluation", report, || evaluation(report)),
            Event::Epoch(report) => {
                self.bar.reset();
                self.print("epoch", report, || self.epoch(report));
            }
        }
    }

    fn print<T: Serialize>(&self, event: &'static str, figures: &T, text: impl FnOnce() -> String) {
        match self.is_json {
            false => self.bar.suspend(|| println!("{}", text())),
            true => print_json(event, figures),
        }
    }

    fn epoch(&self, report: &EpochReport) -> String {
        format!(
            "epoch {:>2}/{}  loss {:.4}  test {:.4}{}{}  {:>6.0} samples/s  waits {:>4.1} %{}",
            report.epoch,
            self.epochs,
            report.loss,
            report.test_loss,
            accuracy(report.test_accuracy),
            measured(&report.metrics),
            report.samples_per_s,
            report.exposed_communication_percent,
            input(report.input_percent)
        )
    }

    pub(super) fn done(&self, summary: &Summary) {
        self.bar.finish_and_clear();
        let seconds = self.began.elapsed().as_secs_f64();
        let Summary { ranks, parameters_hash, memory_bytes, stopped, ended_early, .. } = summary;
        if let Some(EndedEarly { step, best }) = ended_early.as_ref().filter(|_| !self.is_json) {
            let Best { test_loss, step: best_step, evaluations_since } = best;
            println!(
                "stopped early after step {step}: the lowest test loss is {test_loss:.4}, after step {best_step} (evaluations \
                 since: {evaluations_since})"
            );
        }
        match (self.is_json, stopped) {
            (true, None) => print_json("done", summary),
            (true, Some(_)) => print_json("stopped", summary),
            (false, None) => {
                let hold = match self.is_mirrored {
                    true => format!("all {ranks} ranks hold the same parameters,"),
                    false => "parameters".to_owned(),
                };
                let memory = memory_bytes
                    .map_or(String::new(), |bytes| format!("; {} of memory per rank", approximate(bytes)));
                println!("trained in {seconds:.1} s; {hold} {parameters_hash}{memory}");
            }
            (false, Some(Stopped { step, is_saved })) => {
                let saved = match is_saved {
                    true => "saved: continue with --resume",
                    false => "not saved: no --checkpoint-dir was given",
                };
                println!("stopped on request after step {step}, {saved}; parameters {parameters_hash}");
            }
        }
    }
}

/// Returns a notice about the time that ranks wait for input, if it is significant.
fn input(percent: f64) -> String {
    const LEAST_PERCENT: f64 = 5.0;
    if percent < LEAST_PERCENT { String::new() } else { format!("  input {percent:.0} %") }
}

fn evaluation(report: &Evaluation) -> String {
    let Evaluation { step, test_loss, test_accuracy, metrics, .. } = report;
    format!("step {step}  test {test_loss:.4}{}{}", accuracy(*test_accuracy), measured(metrics))
}

/// Formats the accuracy after the loss, if the model classifies.
fn accuracy(share: f64) -> String {
    if share.is_nan() { String::new() } else { format!(", {:.2} %", 100.0 * share) }
}

/// Formats the values of metrics after other figures.
pub(crate) fn measured(metrics: &Measured) -> String {
    metrics.iter().map(|(name, value)| format!(", {name} {value:.4}")).collect()
}

fn workers(report: &WorkersReport) -> String {
    let shares: Vec<_> = report
        .workers
        .iter()
        .map(|WorkerReport { rank, shares, .. }| format!("{shares} by rank {rank}"))
        .collect();
    format!(
        "shares: {}; updates that a gradient missed: {:.1} on average, at most {}",
        shares.join(", "),
        report.mean_missed(),
        report.most_missed()
    )
}

fn straggler(report: &StragglerReport, slowest: &Straggler) -> String {
    let Straggler { rank, host, busy_s, others_busy_s, lateness_s } = slowest;
    let StragglerReport { step, steps, .. } = *report;
    let ms = |seconds: &f64| 1e3 * seconds / steps as f64;
    format!(
        "straggler up to step {step}: rank {rank} on {host} is busy for {:.1} ms per step, the others for {:.1} ms ({:+.0} %); they \
         wait up to {:.1} ms per step for it",
        ms(busy_s),
        ms(others_busy_s),
        100.0 * (busy_s / others_busy_s - 1.0),
        ms(lateness_s)
    )
}

/// Writes an event with these figures as a line of JSON.
pub(crate) fn print_json<T: Serialize>(event: &'static str, figures: &T) {
    output::row(&Line { event, figures });
}

/// The number of times per second that the bar is drawn.
const REDRAWS_PER_SECOND: u8 = 5;

/// Returns the progress bar of an epoch, which is hidden without a terminal. A launcher forwards the output of its ranks, so a rank's standard error
/// is a pipe even if the launcher's is a terminal. The bar is drawn if either is a terminal.
fn bar() -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else if launcher_has_terminal() {
        // `stderr()` would hide the bar, because standard error of this process is a pipe.
        ProgressDrawTarget::term_like_with_hz(Box::new(Term::stderr()), REDRAWS_PER_SECOND)
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{prefix} {bar:32} {percent:>3} %  {msg}  {eta} left");
    ProgressBar::with_draw_target(None, target).with_style(style.expect("the template is right"))
}

/// Returns whether standard error of the parent process, a launcher, is a terminal.
fn launcher_has_terminal() -> bool {
    let stderr = fs::read_link(format!("/proc/{}/fd/2", parent_id()));
    stderr.is_ok_and(|path| path.starts_with("/dev/pts") || path.starts_with("/dev/tty"))
}
