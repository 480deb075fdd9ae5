//! Failure reports of a process, and the panic hook that keeps their causes. The first cause is printed first.

use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use unisono_collectives::Rank;

use super::identity::Identities;
use crate::record::{Doing, Stage};
use crate::status::{FirstFailure, StatusBoard, dump_all, keep_panic};
use crate::system::print_line;

/// The delay of reports after the first cause. The output of each rank takes its own path to the launcher, and should arrive in
/// this order.
pub(super) const LATER: Duration = Duration::from_millis(100);

/// Reports the failure of one rank, once.
#[derive(Debug)]
pub(crate) struct Report {
    pub(super) status: StatusBoard,
    pub(super) identities: Arc<Identities>,
    /// Whether to print. In a program that continues, the library prints nothing.
    prints: bool,
    has_printed: AtomicBool,
}

impl Report {
    pub(super) fn new(status: &StatusBoard, identities: &Arc<Identities>, prints: bool) -> Arc<Self> {
        let (status, identities) = (status.clone(), Arc::clone(identities));
        Arc::new(Self { status, identities, prints, has_printed: AtomicBool::new(false) })
    }

    /// Returns whether this rank may print. It prints only one report.
    fn may_print(&self) -> bool {
        self.prints && !self.has_printed.swap(true, Ordering::Relaxed)
    }

    /// Records that another rank's process has ended. The first process that detects it prints a report and writes that rank's
    /// dump. For a rank of another node, `known` is its last known activity.
    pub(super) fn died(&self, rank: Rank, cause: &str, known: Option<&Doing>) {
        if self.status.fail(rank, rank, cause) {
            let position = self.status.position_of(rank);
            let doing = position.map(|position| self.status.doing(position));
            if self.prints {
                print_line(&first_line(&self.identities, "has died", doing.as_ref().or(known), rank, cause));
            }
            if position.is_some() {
                dump_all(&self.status, &format!("rank {rank} has died"));
            }
        }
        self.status.set_gone(rank);
    }

    /// Records a failure that the watchdog of this rank has detected: the link with rank `first` is cut, or calls mismatch.
    pub(super) fn detected(&self, first: Rank, cause: &str) {
        let rank = self.status.rank();
        if self.status.fail(rank, first, cause) && self.may_print() {
            print_line(&format!("{}: {cause}", self.identities.whole_name(rank)));
        }
    }

    /// Reports that this rank ends because another has failed.
    pub(super) fn aborted(&self) {
        let own = self.status.rank();
        if let Some(FirstFailure { by, cause, .. }) = self.status.failure()
            && by != own
            && self.may_print()
        {
            print_line(&format!("rank {own}: aborted because rank {by} failed: {cause}"));
        }
    }

    /// Records and reports the reason why this rank cannot continue, and the rank `first` that caused it. If another rank failed
    /// before, it reports that failure instead, a little later.
    pub(super) fn fail(&self, first: Rank, cause: &str) {
        let rank = self.status.rank();
        let is_first = self.status.fail(rank, first, cause);
        // Without a cause, another rank is about to record its own.
        if !is_first && self.status.failure().is_none_or(|failure| failure.by != rank) {
            if self.prints {
                std::thread::sleep(LATER);
                self.aborted();
            }
            return;
        }
        if self.may_print() {
            let doing = self.status.doing(self.status.position());
            print_line(&first_line(&self.identities, "has failed", Some(&doing), rank, cause));
        }
    }
}

/// Returns the first line of a report: the rank that failed, its host, the call if known, and the cause.
fn first_line(identities: &Identities, how: &str, doing: Option<&Doing>, rank: Rank, cause: &str) -> String {
    let place = match doing.map(|doing| &doing.last) {
        None => String::new(),
        Some(Some(call)) if call.stage != Stage::Done => format!(" in {}, step {}", call.name(), call.step),
        Some(Some(call)) if !call.is_of_setup() => format!(" after {}", call.name()),
        Some(_) => " before its first collective".to_owned(),
    };
    format!("{} {how}{place}: {cause}", identities.whole_name(rank))
}

/// Installs a panic hook, which keeps texts for [`crate::status::panicked`] and then calls the previous hook.
pub(super) fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            keep_panic(text_of(panic));
            before(panic);
        }));
    });
}

fn text_of(panic: &PanicHookInfo<'_>) -> String {
    let text = panic.payload_as_str().and_then(|text| text.lines().next()).unwrap_or("no text");
    let place = panic.location().map_or(String::new(), |place| format!(" ({place})"));
    format!("it panicked: {text}{place}")
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Instant;

    use super::super::identity::Identity;
    use super::*;
    use crate::status::panicked;

    #[test]
    fn panic_text_is_kept_for_its_thread() {
        keep_panics();
        let thread = std::thread::spawn(|| {
            let _ = std::panic::catch_unwind(|| panic!("on {}\nand more", "purpose"));
            panicked()
        });
        let text = thread.join().unwrap();
        assert!(text.starts_with("it panicked: on purpose (src/watchdog/report.rs:"), "{text}");
        assert_eq!(panicked(), "it panicked");
    }

    #[test]
    fn one_of_two_ranks_that_fail_together_reports_first() {
        let identities = Arc::new(Identities((0..2).map(|_| Identity::of_this_process(0)).collect()));
        for _ in 0..10 {
            let both = Barrier::new(2);
            let statuses = StatusBoard::of_threads(2).unwrap();
            let fail = |status: StatusBoard| {
                let (rank, report) = (status.rank(), Report::new(&status, &identities, true));
                both.wait();
                let began = Instant::now();
                report.fail(rank, "the disk is full");
                began.elapsed() < LATER
            };
            let fail = &fail;
            let are_first = std::thread::scope(|scope| {
                let ranks: Vec<_> =
                    statuses.into_iter().map(|status| scope.spawn(move || fail(status))).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
            });
            assert!(are_first.contains(&false), "the second one reports a little later");
        }
    }
}
