//! Joining a running training run. A restarted worker [joins](unisono::Builder::join) a world of two with each server. Each server listens for each
//! worker at a separate path.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use unisono::{Rank, Unisono, while_waiting};

use super::message::Link;
use unisono_train::TrainError;

/// The time that a worker waits for a server. It is much longer than the time to detect the failure of the previous worker.
const PATIENCE: Duration = Duration::from_secs(30);
/// The delay after a worker that failed to join.
const NAP: Duration = Duration::from_millis(20);

/// The endpoints at which workers join a server, in place of lost ones. The folder belongs to the launcher, and is private to this user.
#[derive(Debug)]
pub(super) struct Joins {
    folder: PathBuf,
    server: Rank,
    is_over: Arc<AtomicBool>,
}

impl Joins {
    /// Creates endpoints on a server, for workers of these ranks.
    pub(super) fn new(folder: PathBuf, server: Rank, mut workers: Range<Rank>) -> Result<Self, TrainError> {
        let listens = workers.try_for_each(|worker| {
            let path = path(&folder, server, worker);
            UnixListener::bind(&path).and_then(|_| fs::remove_file(path))
        });
        let cannot = |error: io::Error| {
            TrainError::Setting(format!("workers cannot join by `{}`: {error}", folder.display()))
        };
        listens.map_err(cannot)?;
        Ok(Self { folder, server, is_over: Arc::default() })
    }

    /// Waits for a worker to join on this rank. Returns `None` once the run is over.
    pub(super) fn wait_for(&self, worker: Rank) -> Option<Link> {
        IS_OVER.set(Arc::clone(&self.is_over));
        let path = path(&self.folder, self.server, worker);
        let grown = || Unisono::builder().unobserved().threads(1)?.remove(0).grow(1, &path);
        while !self.is_over.load(Ordering::Relaxed) {
            match while_waiting(unless_over, grown) {
                Ok(comm) => return Some(Link { comm }),
                // The worker may be started again.
                Err(_) => thread::sleep(NAP),
            }
        }
        None
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

thread_local! {
    /// Whether the run for which this thread waits is over.
    static IS_OVER: RefCell<Arc<AtomicBool>> = RefCell::default();
}

fn unless_over() -> Result<(), String> {
    let is_over = IS_OVER.with_borrow(|is_over| is_over.load(Ordering::Relaxed));
    if is_over { Err("the run is over".to_owned()) } else { Ok(()) }
}

fn path(folder: &Path, server: Rank, worker: Rank) -> PathBuf {
    folder.join(format!("server-{server}-{worker}"))
}

pub(super) fn join(folder: &Path, servers: usize, worker: Rank) -> Result<Vec<Link>, TrainError> {
    let joined = |server| {
        let joined = Unisono::builder().unobserved().timeout(PATIENCE).join(path(folder, server, worker));
        joined.map(|comm| Link { comm }).map_err(|error| TrainError::ServerLost { server, error })
    };
    (0..servers).map(joined).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const WORKERS: Range<Rank> = 2..4;
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn worker_joins_all_servers_and_waits_end_with_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let servers = [0, 1].map(|server| Joins::new(folder.path().to_owned(), server, WORKERS).unwrap());
        thread::scope(|scope| {
            let [first, second] = servers.each_ref().map(|joins| scope.spawn(|| joins.wait_for(3).unwrap()));
            let mut links = join(folder.path(), 2, 3).unwrap();
            for (server, link) in [first, second].into_iter().zip(&mut links) {
                let mut server = server.join().unwrap();
                link.comm.send(&[7_u8], server.comm.rank()).unwrap();
                let mut heard = [0_u8];
                server.comm.receive(&mut heard, link.comm.rank()).unwrap();
                assert_eq!((heard, server.other(), link.other()), ([7], 1, 0));
            }
        });
        let began = Instant::now();
        thread::scope(|scope| {
            let waits = scope.spawn(|| servers[0].wait_for(2).is_none());
            while !path(folder.path(), 0, 2).exists() {
                assert!(began.elapsed() < SOON, "it does not listen");
            }
            servers[0].end();
            assert!(waits.join().unwrap());
        });
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        assert!(servers[0].wait_for(3).is_none());
        assert!(!path(folder.path(), 0, 2).exists());
    }

    #[test]
    fn unusable_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for wrong in [folder.path().join("absent"), folder.path().join("long".repeat(30))] {
            let error = Joins::new(wrong, 0, WORKERS).unwrap_err().to_string();
            assert!(error.contains("workers cannot join by"), "{error}");
        }
    }
}
