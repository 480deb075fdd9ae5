//! The end of a world of processes, regular or after a failure.

use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::World;
use super::sys::{self, Comm, State};
use crate::config::{Launcher, OnFailure};
use crate::status::StatusBoard;
use crate::system::FAILED;
use crate::transport::Fabric;

/// The time that a rank waits before it aborts the job, so that other ranks can report too: a launcher may discard output that
/// it has not forwarded when the job ends.
const REPORT_TIME: Duration = Duration::from_millis(300);

/// The longest time that `MPI_Abort` may take: it may hang if a network is cut.
const ABORT: Duration = Duration::from_secs(2);

/// The time that an ending rank waits for ranks of other nodes. Without watchdog connections between nodes, it may never detect that they
/// have left.
const OTHER_NODES: Duration = Duration::from_secs(10);
const NAP: Duration = Duration::from_millis(1);

/// Ends all processes of the job. The rank that failed first calls `MPI_Abort`, and the others wait for its effect: if several ranks call it
/// while another finalises, Open MPI 4's mpirun may deadlock.
///
/// A process without a launcher just exits: there are no other processes, and `MPI_Abort` would print a page after the cause.
pub(in crate::transport) fn end_job(status: &StatusBoard) -> ! {
    if Launcher::detect().starter.is_none() {
        signal_hook::low_level::exit(FAILED);
    }
    let deadline = std::thread::Builder::new().name("deadline".into()).spawn(|| {
        std::thread::sleep(REPORT_TIME + ABORT);
        signal_hook::low_level::exit(FAILED)
    });
    std::thread::sleep(REPORT_TIME);
    if deadline.is_err() {
        signal_hook::low_level::exit(FAILED);
    }
    if status.failure().is_some_and(|failure| failure.by != status.rank()) {
        std::thread::sleep(ABORT);
    }
    Comm::world().abort(FAILED)
}

impl World {
    /// Ends a rank's part in a world. After a failure, of this rank or another, it skips operations in which all ranks would have to take part.
    pub(in crate::transport) fn end(mut self, fabric: &mut Fabric) {
        if fabric.has_failed && self.on_failure == OnFailure::EndJob {
            end_job(&fabric.status);
        }
        fabric.leave();
        // The program, or the world of this group, may have finalised MPI.
        if fabric.has_failed || sys::state() != State::Up {
            return;
        }
        if self.owns_mpi {
            self.wait_for_all(fabric);
        }
        if fabric.status.failure().is_some() {
            match self.on_failure {
                OnFailure::EndJob => end_job(&fabric.status),
                OnFailure::ReturnError => return,
            }
        }
        let freed =
            self.groups.drain(..).try_for_each(|(_, comm)| comm.free()).and_then(|()| self.comm.free());
        let ended = freed.and_then(|()| if self.owns_mpi { sys::finalize() } else { Ok(()) });
        if let Err(error) = ended {
            tracing::warn!(rank = fabric.rank, %error, "MPI did not end cleanly");
        }
    }

    /// Waits until all ranks have left or one has failed, since `MPI_Finalize` has no deadline, and Open MPI 4's mpirun may deadlock if a rank
    /// that has not arrived aborts the job.
    fn wait_for_all(&self, Fabric { status, topology, .. }: &Fabric) {
        let Some(guard) = status.guard() else { return };
        guard.exchange_now();
        let (began, ranks) = (Instant::now(), topology.ranks());
        let near = |rank: &Rank| status.members().contains(rank);
        while status.failure().is_none() && !(0..ranks).all(|rank| status.has_left(rank)) {
            let only_far = (0..ranks).filter(near).all(|rank| status.has_left(rank));
            if only_far && began.elapsed() > OTHER_NODES {
                return;
            }
            status.check_peers();
            self.comm.progress();
            std::thread::sleep(NAP);
        }
    }
}
