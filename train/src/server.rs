//! The parameter server: some ranks hold the parameters and the optimizer's state, the others compute gradients.
//!
//! A step has as many shares as there are workers at the start. A worker takes the next share, pulls the parameters in the order of its
//! forward pass, and pushes gradients as its backward pass makes them: so a slow worker takes fewer shares, and another takes that of a worker
//! that is lost. Each bucket of parameters is on one server, which updates it with every gradient that arrives or, without
//! [staleness](Staleness), with the mean of a step.
//!
//! The first server coordinates: it hands out shares and evaluation batches, reports, and saves. (Li et al., "Scaling distributed machine
//! learning with the parameter server", 2014; bounded staleness as in Ho et al., "More effective distributed ML via a stale synchronous parallel
//! parameter server", 2013, but counted in updates, since a slow worker is not waited for where it can be helped.)

use std::fmt;
use std::str::FromStr;
use std::thread;
use std::time::Instant;

use unisono::{Communicator, Rank, Unisono};

use crate::buckets::Wire;
use crate::checkpoint::Store;
use crate::compare::{self, agree};
use crate::error::TrainError;
use crate::feed::AnyShare;
use crate::log::Log;
use crate::places::Places;
use crate::replica::Replica;
use crate::report::{Event, Summary};
use crate::resume::{Progress, Resumed};
use crate::run::RunSettings;

mod attend;
mod coordinator;
mod dispatcher;
mod held;
mod holdings;
mod layout;
mod meeting;
mod message;
mod pushing;
mod queue;
mod shard;
mod worker;

use attend::attend;
use coordinator::Coordinator;
use dispatcher::Dispatcher;
use holdings::Holdings;
use layout::Layout;
use message::Link;
use shard::Shard;
use worker::{Remote, Worker};

/// How many updates a gradient may miss: those that servers make between the worker's pull and its push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staleness {
    /// As many as so many steps have shares. With 0, all workers wait for the end of each step, and parameters are updated with the
    /// mean of its gradients: synchronous training.
    Steps(u64),
    /// Any number: asynchronous training.
    Unbounded,
}

impl fmt::Display for Staleness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            Self::Unbounded => f.write_str("unbounded"),
        }
    }
}

/// A text that is no [`Staleness`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no staleness: expected a number of steps, 0 for synchronous training, or unbounded")]
pub struct UnknownStaleness(String);

impl FromStr for Staleness {
    type Err = UnknownStaleness;

    fn from_str(text: &str) -> Result<Self, UnknownStaleness> {
        if text == "unbounded" {
            return Ok(Self::Unbounded);
        }
        text.parse().map(Self::Steps).map_err(|_| UnknownStaleness(text.to_owned()))
    }
}

/// The settings of a [`ParameterServer`]; the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerSettings {
    /// How many ranks serve: the first ones. The others are workers, at least one.
    pub servers: usize,
    /// How stale gradients may be.
    pub staleness: Staleness,
    /// Whether a gradient that missed the updates of n steps is applied at 1 / (1 + n) of the learning rate (Zhang et al.,
    /// "Staleness-aware Async-SGD", 2016, section 3).
    pub damps: bool,
}

/// One rank's part of a run with parameter servers.
///
/// The same model, feed and settings as for a [`Trainer`](crate::Trainer); the feed makes [any share](AnyShare).
#[derive(Debug)]
pub struct ParameterServer<'a, R, F> {
    comm: &'a mut Communicator,
    replica: R,
    feed: F,
    settings: RunSettings,
    servers: ServerSettings,
    layout: Layout,
    resumed: Option<Resumed>,
    /// Of a server: its links to the workers. Of a worker: those to the servers.
    links: Vec<Link>,
    /// Of the coordinator: to the other servers. Of those: to the coordinator.
    between_servers: Vec<Link>,
}

impl<'a, R: Replica, F: AnyShare<Batch = R::Batch>> ParameterServer<'a, R, F> {
    /// Connects servers and workers, and gives the servers rank 0's values, or those of a checkpoint. Called by all ranks.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the settings do not fit the world, the model or each other; as [`Trainer::new`](crate::Trainer::new).
    pub fn new(
        comm: &'a mut Communicator,
        mut replica: R,
        feed: F,
        settings: RunSettings,
        servers: ServerSettings,
        resumed: Option<Resumed>,
    ) -> Result<Self, TrainError> {
        let places = Places {
            checkpoints: settings.checkpoints.as_ref(),
            resumes: resumed.is_some(),
            log_directory: settings.log_directory.as_deref(),
            trace: None,
        };
        places.check(comm)?;
        compare::parameters(comm, replica.parameters())?;
        let layout = Layout::new(replica.parameters(), &settings.buckets, servers.servers.max(1));
        let refused = refusal(comm.ranks(), &replica, &feed, &settings, servers, &layout);
        let refused = refused.map_or(Ok(()), |why| Err(TrainError::Setting(why)));
        agree(comm, refused)?;
        let loaded = resumed.as_ref().map_or(Ok(()), |resumed| resumed.load(&mut replica));
        agree(comm, loaded)?;
        let (links, between_servers) = connect(comm, servers.servers)?;
        Ok(Self { comm, replica, feed, settings, servers, layout, resumed, links, between_servers })
    }

    /// The number of parameters.
    pub fn parameter_count(&self) -> usize {
        self.replica.parameters().iter().map(crate::Parameter::count).sum()
    }

    /// How many buckets each server owns, and their size.
    pub fn buckets(&self) -> (Vec<usize>, crate::BucketSize) {
        let owned = (0..self.servers.servers).map(|server| self.layout.of(server).count()).collect();
        (owned, self.layout.size)
    }

    /// The settings of the run.
    pub fn settings(&self) -> &RunSettings {
        &self.settings
    }

    /// The feed.
    pub fn feed(&self) -> &F {
        &self.feed
    }

    /// Serves or works to the end of the run. The coordinator, which is rank 0, reports every step and epoch, and returns the summary; the
    /// other ranks return `None`.
    ///
    /// If a worker is lost, the others do its shares, unless the world ends with it
    /// ([`OnFailure::EndJob`](unisono::OnFailure::EndJob)). If a server is lost, all fail.
    ///
    /// # Errors
    /// [`TrainError`] of a lost server, of the model, a file or the data; if the loss is not finite; if all workers are lost.
    pub fn run(self, mut tell: impl FnMut(Event)) -> Result<Option<Summary>, TrainError> {
        let rank = self.comm.rank();
        if rank == 0 {
            self.coordinate(&mut tell).map(Some)
        } else if rank < self.servers.servers {
            self.serve().map(|()| None)
        } else {
            self.work().map(|()| None)
        }
    }

    fn workers(&self) -> usize {
        self.comm.ranks() - self.servers.servers
    }

    fn shard(&self) -> Result<Shard, TrainError> {
        let (parameters, optimizer) = (self.replica.parameters(), self.settings.optimizer);
        let (rank, shares) = (self.comm.rank(), self.workers());
        Ok(Shard::new(parameters, &self.layout, rank, optimizer, shares, self.servers)?)
    }

    fn work(self) -> Result<(), TrainError> {
        let (shares, stop) = (self.workers(), self.settings.stop);
        let remote = Remote { links: self.links, layout: self.layout };
        Worker { replica: self.replica, feed: self.feed, remote, shares, stop }.run()
    }

    /// Serves until all clients have left. A worker may be lost; without the coordinator the run is over.
    fn serve(self) -> Result<(), TrainError> {
        let shard = &self.shard()?;
        let mut coordinator = self.between_servers;
        let coordinator = coordinator.pop().expect("a server has a link to the coordinator");
        thread::scope(|scope| {
            for link in self.links {
                // The coordinator reports a worker that is lost.
                scope.spawn(move || attend(link, shard, None));
            }
            Ok(attend(coordinator, shard, None)?)
        })
    }

    fn coordinate(mut self, tell: &mut dyn FnMut(Event)) -> Result<Summary, TrainError> {
        let (ranks, workers, shard) = (self.comm.ranks(), self.workers(), &self.shard()?);
        let first = self.servers.servers;
        let ServerSettings { staleness, .. } = self.servers;
        let dispatcher = &Dispatcher::new(first..ranks, workers, staleness, self.settings.rate);
        let mut holdings = Holdings {
            own: shard,
            others: self.between_servers,
            layout: self.layout,
            optimizer: self.settings.optimizer.kind,
        };
        holdings.restore(&mut self.replica, self.resumed.as_ref())?;
        // What only rank 0 does needs no other rank.
        let mut alone = Unisono::builder().ignore_environment().threads(1)?.remove(0);
        let steps = self.resumed.as_ref().map(|resumed| resumed.progress.step);
        let log = Log::open(&mut alone, &self.settings, steps)?;
        let open = |kept: &crate::Checkpoints| -> Result<Store, TrainError> {
            let store = Store::open(&kept.directory, kept.keep)?;
            if kept.overwrites && self.resumed.is_none() {
                store.clear()?;
            }
            Ok(store)
        };
        let store = self.settings.checkpoints.as_ref().map(open).transpose()?;
        let mut progress = Progress::beginning(&self.settings);
        if let Some(Resumed { progress: saved, passed_over, .. }) = self.resumed {
            for found in passed_over {
                tell(Event::Notice(format!("skipped {}: {}", found.path.display(), found.why)));
            }
            tell(Event::Resumed { step: saved.step, epoch: saved.epoch });
            progress = saved;
        }
        progress.ranks = ranks;
        let coordinator = Coordinator {
            replica: self.replica,
            feed: self.feed,
            dispatcher,
            holdings,
            settings: self.settings,
            progress,
            store,
            log,
            ranks,
            workers,
            saved_at: Instant::now(),
            is_stopping: false,
        };
        thread::scope(|scope| {
            for (worker, link) in (first..).zip(self.links) {
                scope.spawn(move || {
                    if let Err(error) = attend(link, shard, Some((dispatcher, worker))) {
                        dispatcher.lost(worker, error.to_string());
                    }
                });
            }
            let ended = coordinator.run(tell);
            // Also if it fails: the workers that are left are told.
            dispatcher.state().end();
            dispatcher.wake();
            ended
        })
    }
}

/// Links this rank with those that it needs: each server with each worker, and the coordinator with the other servers.
fn connect(comm: &mut Communicator, servers: usize) -> Result<(Vec<Link>, Vec<Link>), TrainError> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let mut link = |server: Rank, client: Rank| -> Result<Option<Link>, TrainError> {
        let is_mine = rank == server || rank == client;
        Ok(is_mine.then(|| meeting::link(comm, server, client)).transpose()?)
    };
    let (mut links, mut between_servers) = (Vec::new(), Vec::new());
    for server in 1..servers {
        between_servers.extend(link(server, 0)?);
    }
    for server in 0..servers {
        for worker in servers..ranks {
            links.extend(link(server, worker)?);
        }
    }
    Ok((links, between_servers))
}

/// Why these settings do not go together, if they do not.
fn refusal<R: Replica>(
    ranks: usize,
    replica: &R,
    feed: &impl AnyShare,
    settings: &RunSettings,
    ServerSettings { servers, staleness, damps }: ServerSettings,
    layout: &Layout,
) -> Option<String> {
    if servers == 0 || servers >= ranks {
        return Some(format!(
            "{servers} of {ranks} ranks serve: there must be at least one server and one worker"
        ));
    }
    let buffer = replica.parameters().iter().find(|parameter| !parameter.is_trained);
    let empty = (0..servers).find(|&server| layout.of(server).next().is_none());
    let buckets = &settings.buckets;
    let reasons = [
        (feed.steps().is_none(), "needs a feed that knows how many steps an epoch has".to_owned()),
        (
            replica.synchronizes(),
            "lets no batch norm compute over all ranks: workers are at different steps".to_owned(),
        ),
        (
            buffer.is_some(),
            format!(
                "holds trained parameters alone, and {} is not trained",
                buffer.map_or("", |buffer| &buffer.name)
            ),
        ),
        (
            empty.is_some(),
            format!("needs a bucket for each of {servers} servers: use fewer, or smaller --bucket-bytes"),
        ),
        (settings.clip_norm.is_some(), "knows no norm of the whole gradient, to clip it".to_owned()),
        (buckets.wire != Wire::F32, format!("sends gradients as f32, and not as {}", buckets.wire)),
        (buckets.local_steps.is_some(), "averages no parameters: remove --local-steps".to_owned()),
        (
            buckets.shard_optimizer,
            "has the optimizer's state on the servers anyway: remove --shard-optimizer".to_owned(),
        ),
        (settings.trace.is_some(), "writes no trace: remove --trace".to_owned()),
        (damps && staleness == Staleness::Steps(0), "without staleness has none to damp".to_owned()),
        (
            settings.early_stopping.is_some() && feed.held_out() == 0,
            "stops early by held-out samples, and there are none".to_owned(),
        ),
    ];
    let (_, why) = reasons.into_iter().find(|(is_so, _)| *is_so)?;
    Some(format!("a parameter server {why}"))
}
