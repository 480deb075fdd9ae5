//! A timeout for `MPI_Init`, which blocks without a deadline.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::config::Launcher;
use crate::system::{self, FAILED, print_line};

/// The time after which a rank reports that it waits for others.
const WARN_AFTER: Duration = Duration::from_secs(30);
/// The minimum timeout of a start, even if that of a collective is shorter, since loading programs takes time.
const MIN_TIMEOUT: Duration = Duration::from_secs(20);

/// Ends this process unless it is dropped in time.
#[derive(Debug)]
pub(in crate::transport::mpi) struct Watch {
    _done: Sender<()>,
}

impl Watch {
    pub(in crate::transport::mpi) fn start(launcher: Launcher, timeout: Duration) -> Self {
        let (timeout, (done, ended)) = (timeout.max(MIN_TIMEOUT), channel());
        let watch = move || {
            let deadlines = WARN_AFTER.min(timeout / 2);
            if ended.recv_timeout(deadlines) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            if launcher.rank.is_none_or(|rank| rank == 0) {
                print_line(&not_begun(launcher, deadlines));
            }
            if ended.recv_timeout(timeout.saturating_sub(deadlines)) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            print_line(&format!("{}; this process gives up", not_begun(launcher, timeout)));
            super::super::sys::end_process(FAILED)
        };
        // Without a thread there is no timeout, which is no reason to fail.
        let _ = std::thread::Builder::new().name("unisono launch".into()).spawn(watch);
        Self { _done: done }
    }
}

fn not_begun(launcher: Launcher, waited: Duration) -> String {
    let rank = launcher.rank.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {rank}"));
    let ranks = launcher.ranks.map_or_else(|| "all ranks".to_owned(), |ranks| format!("all {ranks} ranks"));
    format!(
        "{rank} on {} has waited {} s for {ranks} to begin: does each process that was launched start unisono's \
         communicator, and do all nodes reach each other?",
        system::host(),
        waited.as_secs_f64().round()
    )
}
