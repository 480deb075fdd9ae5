//! The server process: one thread for each client, and another on which the coordinator controls the run.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use unisono::{Error, Rank, Unisono};

use super::coordinator::Coordinator;
use super::dispatcher::Dispatcher;
use super::holdings::Holdings;
use super::join::Joins;
use super::message::{Kind, Link, Message};
use super::shard::Shard;
use super::{Part, ServerSettings, Staleness};
use unisono_train::internals::RunState;
use unisono_train::{Event, RandomAccessFeed, Replica, Resumed, Summary, TrainError};

/// The deadline of a wait for the coordinator: a year. It sends nothing to the other servers between checkpoints, and its loss ends the wait at once.
const SILENCE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl<R: Replica, F: RandomAccessFeed<Batch = R::Batch>> Part<R, F> {
    /// Serves until all clients have left. A lost worker is tolerated. Without the coordinator, the run is over. Returns whether it has stopped on
    /// request.
    pub(super) fn serve(mut self) -> Result<bool, TrainError> {
        let (shard, joins) = (&self.shard()?, self.joins()?);
        let coordinator = self.between_servers.pop().expect("a server has a link to the coordinator");
        thread::scope(|scope| {
            // The coordinator reports lost workers.
            for (worker, link) in (self.servers.servers..).zip(self.links) {
                let joins = joins.as_ref();
                scope.spawn(move || attend_worker(worker, link, shard, None, joins));
            }
            let ended = attend_coordinator(coordinator, shard);
            joins.iter().for_each(Joins::end);
            ended.map_err(|error| TrainError::ServerLost { server: 0, error })
        })
    }

    /// Returns the endpoints at which workers join this server, if joining is permitted.
    fn joins(&self) -> Result<Option<Joins>, TrainError> {
        let joins = |folder| Joins::new(folder, self.rank, self.servers.servers..self.ranks);
        self.folder.clone().map(joins).transpose()
    }

    /// Serves as the first server, and controls the run once all servers hold its initial state.
    pub(super) fn coordinate(self, on_event: &mut dyn FnMut(Event)) -> Result<Summary, TrainError> {
        let (shard, joins, workers) = (&self.shard()?, self.joins()?, self.workers());
        let ServerSettings { servers: first, staleness, .. } = self.servers;
        let dispatcher = &Dispatcher::new(first..self.ranks, staleness, self.settings.rate);
        let Self { ranks, mut replica, feed, settings, layout, resumed, links, between_servers, .. } = self;
        let mut holdings = Holdings {
            own: shard,
            others: between_servers,
            layout,
            rule: settings.optimizer.rule.clone(),
            updates_per_step: if staleness == Staleness::Steps(0) { 1 } else { workers as u64 },
        };
        holdings.restore(&mut replica, resumed.as_ref())?;
        // Rank 0 opens the files alone, in a world of one rank.
        let mut alone = Unisono::builder().ignore_environment().threads(1)?.remove(0);
        let mut state = RunState::open(&mut alone, settings, resumed.as_ref())?;
        state.progress.ranks = ranks;
        resumed.iter().flat_map(Resumed::events).for_each(&mut *on_event);
        // The run needs neither that world nor the arrays of the checkpoint.
        drop((alone, resumed));
        let coordinator = Coordinator {
            replica,
            feed,
            dispatcher,
            holdings,
            state,
            workers,
            is_elastic: joins.is_some(),
            deserted: None,
            last_lost: None,
            without: BTreeSet::new(),
        };
        thread::scope(|scope| {
            for (worker, link) in (first..).zip(links) {
                let joins = joins.as_ref();
                scope.spawn(move || attend_worker(worker, link, shard, Some(dispatcher), joins));
            }
            let _end = EndOfRun { dispatcher, joins: joins.as_ref() };
            coordinator.run(on_event)
        })
    }
}

/// Ends the run when it is dropped: after an error, so that the remaining workers are informed, and also while a panic of the coordinator unwinds,
/// such as one of the user's callback. The panic waits for the threads of the links, which would otherwise answer the workers for ever.
struct EndOfRun<'a> {
    dispatcher: &'a Dispatcher,
    joins: Option<&'a Joins>,
}

impl Drop for EndOfRun<'_> {
    fn drop(&mut self) {
        self.dispatcher.state().is_over = true;
        self.dispatcher.wake();
        self.joins.into_iter().for_each(Joins::end);
    }
}

/// Reports the loss of a worker if serving it panics, as an update rule may. Its share would otherwise be awaited for ever.
struct LostByPanic<'a>(&'a Dispatcher, Rank);

impl Drop for LostByPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lost(self.1, "its server panicked".to_owned());
        }
    }
}

/// Serves the worker of this rank, and its replacements, until one leaves or the run is over.
fn attend_worker(
    worker: Rank,
    mut link: Link,
    shard: &Shard,
    dispatcher: Option<&Dispatcher>,
    joins: Option<&Joins>,
) {
    let _lost = dispatcher.map(|dispatcher| LostByPanic(dispatcher, worker));
    while let Err(error) = attend(link, shard, dispatcher.map(|dispatcher| (dispatcher, worker))) {
        if let Some(dispatcher) = dispatcher {
            dispatcher.lost(worker, cause(&error));
        }
        let Some(joined) = joins.and_then(|joins| joins.wait_for(worker)) else { return };
        if let Some(dispatcher) = dispatcher {
            dispatcher.joined(worker);
        }
        link = joined;
    }
}

/// Serves the coordinator until it leaves. Returns whether the run has stopped on request.
fn attend_coordinator(mut link: Link, shard: &Shard) -> Result<bool, Error> {
    link.comm.set_timeout(SILENCE);
    attend(link, shard, None)
}

/// Serves a client until it leaves. Only the coordinator has a dispatcher, which identifies the client by its rank. Returns whether the client has
/// announced that the run has stopped on request, as the coordinator does.
fn attend(mut link: Link, shard: &Shard, dispatcher: Option<(&Dispatcher, Rank)>) -> Result<bool, Error> {
    let mut visit = shard.visit(&link)?;
    let mut missed = 0;
    loop {
        let request = link.receive()?;
        match (request.kind, dispatcher) {
            (Kind::Pull, _) => shard.give(&mut link, &mut visit)?,
            (Kind::Push, _) => missed = shard.take(&mut link, &mut visit, &request)?,
            (Kind::Trained, Some((dispatcher, worker))) => dispatcher.trained(worker, &request, missed),
            (Kind::Evaluated, Some((dispatcher, worker))) => dispatcher.evaluated(worker, &request),
            (Kind::Ask, Some((dispatcher, worker))) => {
                let next = dispatcher.next(worker, request.asks_to_stop != 0);
                link.send(next)?;
            }
            (Kind::Ask, None) => {}
            (Kind::Read, _) => shard.read().iter().try_for_each(|held| held.send(&mut link))?,
            (Kind::Restore, _) => {
                let mut held = shard.read();
                held.iter_mut().try_for_each(|held| held.receive(&mut link))?;
                shard.restore(&held);
                link.send(Message::new(Kind::Done))?;
            }
            (Kind::Leave, _) => return Ok(request.asks_to_stop != 0),
            (kind, _) => unreachable!("a client of this server sends no {kind:?}"),
        }
    }
}

/// Returns the cause of the loss of a client, without its rank in the link.
fn cause(error: &Error) -> String {
    match error {
        Error::Aborted { cause, .. } => cause.clone(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Layout;
    use super::super::message::CLIENT;
    use super::*;
    use unisono_data::Stop;
    use unisono_train::{BucketSettings, OptimizerSettings, Parameter, Sgd};

    #[test]
    fn server_waits_for_the_coordinator_longer_than_the_usual_timeout() {
        let ended = unisono::threads(2, |mut comm| -> unisono::Result<bool> {
            let timeout = Duration::from_millis(50);
            comm.set_timeout(timeout);
            let mut link = Link { comm };
            if link.comm.rank() == CLIENT {
                thread::sleep(10 * timeout);
                link.send(Message { asks_to_stop: 1, ..Message::new(Kind::Leave) })?;
                return Ok(true);
            }
            let parameters = [Parameter::new("number", [1])];
            let layout = Layout::new(&parameters, &BucketSettings::default(), 1);
            let optimizer = OptimizerSettings::new(Sgd::default());
            let servers = ServerSettings { servers: 1, staleness: Staleness::Steps(0), damps: false };
            let shard = Shard::new(&parameters, &layout, 0, optimizer, 1, servers, Stop::default())?;
            attend_coordinator(link, &shard)
        });
        assert!(ended.iter().all(|ended| matches!(ended, Ok(true))), "{ended:?}");
    }
}
