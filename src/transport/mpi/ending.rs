//! How a world of processes ends, well or not.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::Mpi;
use super::sys::Comm;
use crate::status::{FailureReport, StatusBoard};
use crate::system::{FAILED, say};

/// How long a rank waits before it ends the job: the others are to speak too, and its launcher, which passes on what ranks
/// write, may throw away what it has not yet read when the job ends.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// How long MPI may take to end the job: it may hang where a network is cut.
const ABORT: Duration = Duration::from_secs(2);

/// How long a rank that ends waits for those of other nodes: that they have left may not reach it, where the nodes have no
/// connections of their own.
const FAR: Duration = Duration::from_secs(10);
/// How long it sleeps between two looks.
const NAP: Duration = Duration::from_millis(1);
/// A tag that no message has.
const NO_TAG: c_int = 7;

/// Says why a rank cannot go on, and lets the others know.
pub(super) fn last_words(report: Option<&dyn FailureReport>, status: &StatusBoard, cause: &str) {
    if let Some(report) = report {
        return report.fail(cause);
    }
    say(&format!("unisono: rank {} ends the job: {cause}\n", status.rank()));
    status.fail(status.rank(), cause);
}

/// Ends all processes that were launched together. The rank that failed first has MPI do so, and the others wait for that:
/// where several do it at once while another finalises, Open MPI 4's mpirun may wait for itself for ever.
pub(super) fn end_job(status: &StatusBoard) -> ! {
    let deadline = std::thread::Builder::new().name("deadline".into()).spawn(|| {
        std::thread::sleep(LAST_WORDS + ABORT);
        signal_hook::low_level::exit(FAILED)
    });
    std::thread::sleep(LAST_WORDS);
    if deadline.is_err() {
        signal_hook::low_level::exit(FAILED);
    }
    if status.failed().is_some_and(|(by, _)| by != status.rank()) {
        std::thread::sleep(ABORT);
    }
    Comm::world().abort(FAILED)
}

impl Mpi {
    /// After a failure in a program that goes on: what MPI may still write to stays where it is, and what others would have to
    /// take part in is not done.
    pub(super) fn leave_behind(&mut self) {
        std::mem::forget(std::mem::take(&mut self.messages.flights));
        self.status.leave(self.rank);
    }

    /// Waits until all ranks have left: to finalise is to wait where no deadline is, and where Open MPI 4's mpirun may wait for
    /// itself for ever if a rank that has not come ends the job.
    pub(super) fn wait_for_all(&self) {
        let Some(report) = &self.report else { return };
        report.hurry();
        let (began, ranks) = (Instant::now(), self.topology.ranks());
        let near = |rank: &Rank| self.status.members().contains(rank);
        while !(0..ranks).all(|rank| self.status.has_left(rank)) {
            let only_far = (0..ranks).filter(near).all(|rank| self.status.has_left(rank));
            if only_far && began.elapsed() > FAR {
                return;
            }
            if self.status.failed().is_some() {
                end_job(&self.status);
            }
            // What was sent before may still be on its way. No message has this tag.
            let progress = self.comm.probe(NO_TAG);
            debug_assert!(!matches!(progress, Ok(Some(_))), "no message has this tag");
            std::thread::sleep(NAP);
        }
    }
}
