//! The server process: one thread for each client, and the coordinator leads the run on another.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use unisono::{Error, Rank, Unisono};

use super::attend::attend;
use super::coordinator::Coordinator;
use super::dispatcher::Dispatcher;
use super::holdings::Holdings;
use super::join::{JoinListener, link};
use super::message::{Link, SERVER};
use super::shard::Shard;
use super::{Part, ServerSettings, Staleness};
use unisono_train::checkpoint::PassedOver;
use unisono_train::internals::Log;
use unisono_train::{Event, Progress, RandomAccessFeed, Replica, Resumed, Summary, TrainError};

/// The interval at which a server polls for workers that join.
const POLL: Duration = Duration::from_millis(20);

impl<R: Replica, F: RandomAccessFeed<Batch = R::Batch>> Part<R, F> {
    /// Serves until all clients have left. A worker may be lost; without the coordinator the run is over.
    pub(super) fn serve(self) -> Result<(), TrainError> {
        let (shard, joins) = (&self.shard()?, self.join_listener()?);
        let mut coordinator = self.between_servers;
        let coordinator = coordinator.pop().expect("a server has a link to the coordinator");
        let is_over = &AtomicBool::new(false);
        thread::scope(|scope| {
            // The coordinator reports a worker that is lost.
            for link in self.links {
                scope.spawn(move || attend(link, shard, None));
            }
            if let Some(joins) = joins {
                // On a thread of its own, so that a worker that stalls delays no other.
                let admitted = move |_, stream| {
                    scope.spawn(move || link(SERVER, stream).and_then(|link| attend(link, shard, None)));
                };
                scope.spawn(move || admit(joins, || is_over.load(Ordering::Relaxed), admitted));
            }
            let ended = attend(coordinator, shard, None);
            is_over.store(true, Ordering::Relaxed);
            ended.map_err(|error| TrainError::ServerLost { server: 0, error })
        })
    }

    /// Returns the port at which workers join this server, if they may.
    fn join_listener(&self) -> Result<Option<JoinListener>, TrainError> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let cannot =
            |error| TrainError::Setting(format!("workers cannot join by `{}`: {error}", folder.display()));
        JoinListener::open(folder, self.rank, self.servers.servers..self.ranks).map(Some).map_err(cannot)
    }

    /// Serves as the first server, and leads the run.
    pub(super) fn coordinate(mut self, tell: &mut dyn FnMut(Event)) -> Result<Summary, TrainError> {
        let (shard, joins) = (&self.shard()?, self.join_listener()?);
        let ServerSettings { servers: first, staleness, .. } = self.servers;
        let dispatcher = &Dispatcher::new(first..self.ranks, staleness, self.settings.rate);
        let links = std::mem::take(&mut self.links);
        let coordinator = self.coordinator(shard, dispatcher, joins.is_some(), tell)?;
        thread::scope(|scope| {
            let attend_worker = move |worker: Rank, link: Link| {
                if let Err(error) = attend(link, shard, Some((dispatcher, worker))) {
                    dispatcher.lost(worker, cause(&error));
                }
            };
            for (worker, link) in (first..).zip(links) {
                scope.spawn(move || attend_worker(worker, link));
            }
            if let Some(joins) = joins {
                // On a thread of its own, so that a worker that stalls delays no other.
                let admitted = move |worker, stream| {
                    scope.spawn(move || match link(SERVER, stream) {
                        Ok(link) if dispatcher.joined(worker) => attend_worker(worker, link),
                        _ => {}
                    });
                };
                scope.spawn(move || admit(joins, || dispatcher.is_over(), admitted));
            }
            let ended = coordinator.run(tell);
            // Also if it fails: the workers that are left are told.
            dispatcher.state().end();
            dispatcher.wake();
            ended
        })
    }

    /// Returns the coordinator, once all servers hold what the run begins with.
    fn coordinator<'a>(
        mut self,
        shard: &'a Shard,
        dispatcher: &'a Dispatcher,
        is_elastic: bool,
        tell: &mut dyn FnMut(Event),
    ) -> Result<Coordinator<'a, R, F>, TrainError> {
        let (workers, staleness) = (self.workers(), self.servers.staleness);
        let Self { ref mut replica, settings, resumed, .. } = self;
        let mut holdings = Holdings {
            own: shard,
            others: self.between_servers,
            layout: self.layout,
            rule: settings.optimizer.rule.clone(),
            updates_per_step: if staleness == Staleness::Steps(0) { 1 } else { workers as u64 },
        };
        holdings.restore(replica, resumed.as_ref())?;
        // Work of rank 0 alone needs no other rank.
        let mut alone = Unisono::builder().ignore_environment().threads(1)?.remove(0);
        let log = Log::open(&mut alone, &settings, resumed.as_ref().map(|resumed| resumed.progress.step))?;
        let store = settings.checkpoints.as_ref().map(|kept| kept.open(resumed.is_some())).transpose()?;
        let mut progress = Progress::beginning(&settings);
        if let Some(Resumed { progress: saved, passed_over, .. }) = resumed {
            for PassedOver { path, why } in passed_over {
                tell(Event::Notice(format!("skipped {}: {why}", path.display())));
            }
            tell(Event::Resumed { step: saved.step, epoch: saved.epoch });
            progress = saved;
        }
        (progress.ranks, progress.global_batch) = (self.ranks, settings.global_batch);
        Ok(Coordinator {
            replica: self.replica,
            feed: self.feed,
            dispatcher,
            holdings,
            settings,
            progress,
            store,
            log,
            ranks: self.ranks,
            workers,
            is_elastic,
            deserted: None,
            last_lost: None,
            tested: None,
            saved_at: Instant::now(),
            is_stopping: false,
        })
    }
}

/// Returns the reason why a client is lost, without the numbers of ranks in its link.
fn cause(error: &Error) -> String {
    match error {
        Error::Aborted { cause, .. } => cause.clone(),
        error => error.to_string(),
    }
}

/// Admits workers that join, until the run is over.
fn admit(mut joins: JoinListener, is_over: impl Fn() -> bool, admitted: impl Fn(Rank, TcpStream)) {
    while !is_over() {
        joins.poll(Instant::now()).into_iter().for_each(|(worker, stream)| admitted(worker, stream));
        thread::sleep(POLL);
    }
}
