//! MPI's own beginning blocks for as long as MPI likes: a clock that ends it.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::say;
use crate::config::Launcher;
use crate::system::{self, FAILED};

/// After so long it is said that ranks are waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// So long they may take, however short the deadline of a collective is: programs are loaded, and take turns.
const LEAST: Duration = Duration::from_secs(20);

/// Ends this process if it is not dropped in time.
#[derive(Debug)]
pub(in crate::transport::mpi) struct Watch {
    _done: Sender<()>,
}

impl Watch {
    /// Gives what follows so much time.
    pub(in crate::transport::mpi) fn start(launcher: Launcher, timeout: Duration) -> Self {
        let (timeout, (done, ended)) = (timeout.max(LEAST), channel());
        let watch = move || {
            let deadlines = PATIENCE.min(timeout / 2);
            if ended.recv_timeout(deadlines) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            if launcher.rank.is_none_or(|rank| rank == 0) {
                say(&not_begun(launcher, deadlines));
            }
            if ended.recv_timeout(timeout.saturating_sub(deadlines)) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            say(&format!("{}; this process gives up", not_begun(launcher, timeout)));
            super::super::sys::end_process(FAILED)
        };
        // Without a thread there is no clock, and no reason not to begin.
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
