//! The end of a world of processes, regular or after a failure.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::Mpi;
use super::sys::Comm;
use crate::status::{FailureReport, StatusBoard};
use crate::system::{FAILED, say};

/// How long a rank waits before it aborts the job, so that other ranks can report too: a launcher may discard output that it has
/// not forwarded when the job ends.
const REPORT_TIME: Duration = Duration::from_millis(300);

/// How long `MPI_Abort` may take: it may hang if a network is cut.
const ABORT: Duration = Duration::from_secs(2);

/// How long a rank that ends waits for those of other nodes; without watchdog connections between nodes, it may never learn that
/// they have left.
const FAR: Duration = Duration::from_secs(10);
/// How long it sleeps between polls.
const NAP: Duration = Duration::from_millis(1);
/// A tag that no message uses.
const NO_TAG: c_int = 7;

/// Reports why a rank cannot continue and which rank failed first, and informs the others.
pub(super) fn report_failure(
    report: Option<&dyn FailureReport>,
    status: &StatusBoard,
    (first, cause): (Rank, &str),
) {
    if let Some(report) = report {
        return report.fail(first, cause);
    }
    say(&format!("unisono: rank {} ends the job: {cause}\n", status.rank()));
    status.fail(status.rank(), first, cause);
}

/// Ends all processes of the job. The rank that failed first calls `MPI_Abort`, and the others wait for that: if several do so
/// at once while another finalises, Open MPI 4's mpirun may deadlock.
pub(super) fn end_job(status: &StatusBoard) -> ! {
    let deadline = std::thread::Builder::new().name("deadline".into()).spawn(|| {
        std::thread::sleep(REPORT_TIME + ABORT);
        signal_hook::low_level::exit(FAILED)
    });
    std::thread::sleep(REPORT_TIME);
    if deadline.is_err() {
        signal_hook::low_level::exit(FAILED);
    }
    if status.failed().is_some_and(|(by, _)| by != status.rank()) {
        std::thread::sleep(ABORT);
    }
    Comm::world().abort(FAILED)
}

impl Mpi {
    /// After a failure in a program that continues: keeps the memory that MPI may still write to, and skips operations that
    /// other ranks would have to take part in.
    pub(super) fn leave_behind(&mut self) {
        std::mem::forget(std::mem::take(&mut self.messages.flights));
        self.status.leave(self.rank);
        if let Some(report) = &self.report {
            report.hurry();
        }
    }

    /// Waits until all ranks have left: `MPI_Finalize` has no deadline, and Open MPI 4's mpirun may deadlock if a rank that has
    /// not arrived aborts the job.
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
            self.status.look();
            if self.status.failed().is_some() {
                end_job(&self.status);
            }
            // Drives progress for earlier sends. No message has this tag.
            let progress = self.comm.probe(None, NO_TAG);
            debug_assert!(!matches!(progress, Ok(Some(_))), "no message has this tag");
            std::thread::sleep(NAP);
        }
    }
}
