//! The parameter server: some ranks hold the parameters and the optimizer state, and the others compute gradients.
//!
//! A step has one share per worker at the start of the run. A worker processes one share after the other. It pulls the parameters in the order of its
//! forward pass, and pushes gradients as its backward pass computes them. A slow worker therefore processes fewer shares. In an
//! [elastic](ParameterServer::elastic) run, the share of a lost worker goes to another. Each bucket of parameters is on one server, which updates it
//! with every gradient that arrives. Without [staleness](Staleness), it updates the bucket with the mean of a step.
//!
//! The first server coordinates: it assigns shares and evaluation batches, reports, and saves. Parameter servers follow Li et al., "Scaling
//! distributed machine learning with the parameter server", 2014. Bounded staleness follows Ho et al., "More effective distributed ML via a stale
//! synchronous parallel parameter server", 2013. Here it is counted in updates, because other workers can help a slow one instead of waiting for it.

use std::path::{Path, PathBuf};

use unisono::{Communicator, Rank};

use unisono_train::internals::{check_run, model};
use unisono_train::{
    BucketSize, Event, Parameter, RandomAccessFeed, Replica, Resumed, RunSettings, Summary, TrainError, agree,
};

mod coordinator;
mod dispatcher;
mod holdings;
mod join;
mod layout;
mod message;
mod pushing;
mod queue;
mod serving;
mod settings;
mod shard;
mod worker;

use layout::Layout;
use message::Link;
pub use settings::{ServerSettings, Staleness};
use shard::Shard;

/// One rank's part of a run with parameter servers.
///
/// Takes the model, feed and settings of a [`Trainer`](unisono_train::Trainer). The feed must make [any share](RandomAccessFeed).
///
/// ```
/// use unisono_data::DataError;
/// use unisono_strategies::{ParameterServer, ServerSettings, Staleness};
/// use unisono_train::{
///     RandomAccessFeed, Feed, Gradients, OptimizerSettings, Parameter, Replica, ReplicaError, RunSettings, Sgd, Steps, LossSums,
/// };
/// use unisono_train::metrics::VisitOutputs;
/// use unisono_train::rate::{Rate, Schedule};
///
/// /// Finds the number from which all samples are least far.
/// struct Middle(Vec<Parameter>, f32);
///
/// impl Replica for Middle {
///     type Batch = f32;
///
///     fn parameters(&self) -> &[Parameter] {
///         &self.0
///     }
///     fn pass(&mut self, sample: &f32, gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
///         let off = self.1 - sample;
///         gradients.record_loss(LossSums { targets: 1.0, loss: f64::from(off * off), correct: 0.0 });
///         gradients.put(0, &mut |gradient, fill| fill.write(gradient, &[2.0 * off]));
///         Ok(())
///     }
///     fn evaluate(&mut self, _: &f32, _: Option<VisitOutputs<'_>>) -> Result<LossSums, ReplicaError> {
///         Ok(LossSums::default())
///     }
///     fn with_values(&mut self, _: usize, see: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
///         see(std::slice::from_mut(&mut self.1));
///         Ok(())
///     }
/// }
///
/// /// Each share of a step has one sample: its number.
/// struct Numbers;
///
/// impl Feed for Numbers {
///     type Batch = f32;
///
///     fn steps(&self) -> Option<usize> {
///         Some(200)
///     }
///     fn epoch(&mut self, _: usize, _: usize) -> Result<Steps<f32>, DataError> {
///         unimplemented!("workers take single shares")
///     }
/// }
///
/// impl RandomAccessFeed for Numbers {
///     fn share(&mut self, _: usize, _: usize, number: usize, _: usize, _: bool) -> Result<Vec<Option<f32>>, DataError> {
///         Ok(vec![Some(number as f32)])
///     }
/// }
///
/// // One rank serves, and three work.
/// let losses = unisono::threads(4, |mut comm| -> Result<Option<f64>, unisono_train::TrainError> {
///     let optimizer = OptimizerSettings::new(Sgd { momentum: 0.0, nesterov: false });
///     let settings = RunSettings::new(2, 3, optimizer, Rate::new(Schedule::Constant, 0.01, 0.0, 400));
///     let servers = ServerSettings { servers: 1, staleness: Staleness::Steps(2), damps: false };
///     let replica = Middle(vec![Parameter::new("middle", [1])], 9.0);
///     let run = ParameterServer::new(&mut comm, replica, Numbers, settings, servers, None)?;
///     Ok(run.run(|_| ())?.summary.map(|summary| summary.last.loss))
/// });
/// // The samples 0, 1 and 2 are, in the mean of their squares, 2/3 from 1.
/// let loss = losses.into_iter().collect::<Result<Vec<_>, _>>().unwrap()[0].unwrap();
/// assert!((loss - 2.0 / 3.0).abs() < 0.3, "{loss}");
/// ```
#[derive(Debug)]
pub struct ParameterServer<'a, R, F> {
    comm: &'a mut Communicator,
    part: Part<R, F>,
}

/// The end of a run on one rank.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The summary, only on the coordinator.
    pub summary: Option<Summary>,
    /// Whether the run has [stopped](RunSettings::stop) on request. The same on all ranks.
    pub has_stopped: bool,
}

/// The state of a rank in a run, apart from its world.
#[derive(Debug)]
struct Part<R, F> {
    rank: Rank,
    ranks: usize,
    replica: R,
    feed: F,
    settings: RunSettings,
    servers: ServerSettings,
    layout: Layout,
    resumed: Option<Resumed>,
    /// On a server: the links to the workers. On a worker: the links to the servers.
    links: Vec<Link>,
    /// On the coordinator: the links to the other servers. On another server: the link to the coordinator.
    between_servers: Vec<Link>,
    /// The folder through which workers join.
    folder: Option<PathBuf>,
}

impl<'a, R: Replica, F: RandomAccessFeed<Batch = R::Batch>> ParameterServer<'a, R, F> {
    /// Connects servers and workers, and distributes rank 0's values, or those of a checkpoint, to the servers. Called by all ranks.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the settings do not fit the world, the model or each other. As [`Trainer::new`](unisono_train::Trainer::new).
    pub fn new(
        comm: &'a mut Communicator,
        replica: R,
        feed: F,
        settings: RunSettings,
        servers: ServerSettings,
        resumed: Option<Resumed>,
    ) -> Result<Self, TrainError> {
        check_run(comm, &settings, feed.held_out(), resumed.as_ref())?;
        model(comm, replica.parameters())?;
        let mut part = Part::new((comm.rank(), comm.ranks()), replica, feed, settings, servers);
        let refused = part.refusal().map_or(Ok(()), |why| Err(TrainError::Setting(why)));
        agree(comm, refused)?;
        let loaded = resumed.as_ref().map_or(Ok(()), |resumed| resumed.load(&mut part.replica));
        agree(comm, loaded)?;
        part.resumed = resumed;
        (part.links, part.between_servers) = connect(comm, servers.servers)?;
        Ok(Self { comm, part })
    }

    /// Continues without lost workers, and permits others to [join](ParameterServer::join) in their place. They find the servers by files in this
    /// folder, which must be private to this user. All ranks must be on one machine. Called by all ranks.
    #[must_use]
    pub fn elastic(mut self, folder: PathBuf) -> Self {
        self.part.folder = Some(folder);
        self
    }

    /// Replaces the lost worker of this rank until the end of the run. `ranks` is the number of ranks at the start of the run. The replica, the feed
    /// and the settings must equal those of the other workers. Returns whether the run has stopped, as [`Ended::has_stopped`].
    ///
    /// # Errors
    /// [`TrainError::ServerLost`] if this rank was a server, because its parameters are lost with it. As [`ParameterServer::run`].
    pub fn join(
        folder: &Path,
        (rank, ranks): (Rank, usize),
        replica: R,
        feed: F,
        settings: &RunSettings,
        servers: ServerSettings,
    ) -> Result<bool, TrainError> {
        servers.check_joins(rank)?;
        let mut part = Part::new((rank, ranks), replica, feed, settings.clone(), servers);
        part.links = join::join(folder, servers.servers, rank)?;
        part.work()
    }

    /// Returns the number of parameters.
    pub fn parameter_count(&self) -> usize {
        self.part.replica.parameters().iter().map(Parameter::count).sum()
    }

    /// Returns the number of buckets that each server owns, and their size.
    pub fn buckets(&self) -> (Vec<usize>, BucketSize) {
        let Part { layout, servers, .. } = &self.part;
        ((0..servers.servers).map(|server| layout.of(server).count()).collect(), layout.size)
    }

    /// Returns the settings of the run.
    pub fn settings(&self) -> &RunSettings {
        &self.part.settings
    }

    /// Returns the feed.
    pub fn feed(&self) -> &F {
        &self.part.feed
    }

    /// Serves or works until the end of the run. The coordinator, which is rank 0, reports every step and epoch, and returns the summary. If this
    /// rank fails, it fails the communicator.
    ///
    /// If a worker of an [elastic](ParameterServer::elastic) run is lost, the others process its shares, unless the world ends with it
    /// ([`OnFailure::EndJob`](unisono::OnFailure::EndJob)). If a server is lost, or a worker of another run, all ranks fail.
    ///
    /// # Errors
    /// [`TrainError`] of a lost server, of the model, a file or the data. Also if the loss is not finite, if a worker of a run that is not elastic is
    /// lost, or if all workers are lost.
    pub fn run(self, mut on_event: impl FnMut(Event)) -> Result<Ended, TrainError> {
        let Self { comm, part } = self;
        let without_summary = |has_stopped| Ended { summary: None, has_stopped };
        let ended = match part.rank {
            0 => part.coordinate(&mut on_event).map(|summary| {
                let has_stopped = summary.stopped.is_some();
                Ended { summary: Some(summary), has_stopped }
            }),
            server if server < part.servers.servers => part.serve().map(without_summary),
            _ => part.work().map(without_summary),
        };
        if let Err(error) = &ended {
            comm.fail(&error.to_string());
        }
        ended
    }
}

impl<R: Replica, F: RandomAccessFeed<Batch = R::Batch>> Part<R, F> {
    fn new(
        (rank, ranks): (Rank, usize),
        replica: R,
        feed: F,
        settings: RunSettings,
        servers: ServerSettings,
    ) -> Self {
        // The number of servers is checked later, and the layout allocates memory for each.
        let layout = Layout::new(replica.parameters(), &settings.buckets, servers.servers.clamp(1, ranks));
        let (links, between_servers, resumed, folder) = (Vec::new(), Vec::new(), None, None);
        Self {
            rank,
            ranks,
            replica,
            feed,
            settings,
            servers,
            layout,
            resumed,
            links,
            between_servers,
            folder,
        }
    }

    fn workers(&self) -> usize {
        self.ranks - self.servers.servers
    }

    fn shard(&self) -> Result<Shard, TrainError> {
        let (parameters, optimizer) = (self.replica.parameters(), self.settings.optimizer.clone());
        let (workers, stop) = (self.workers(), self.settings.stop.clone());
        Ok(Shard::new(parameters, &self.layout, self.rank, optimizer, workers, self.servers, stop)?)
    }
}

/// Creates the links of this rank: each server has a link to each worker, and the coordinator has one to each other server.
fn connect(comm: &mut Communicator, servers: usize) -> Result<(Vec<Link>, Vec<Link>), TrainError> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let mut link = |server: Rank, client: Rank| -> Result<Option<Link>, TrainError> {
        let is_mine = rank == server || rank == client;
        Ok(is_mine.then(|| message::link(comm, server, client)).transpose()?)
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
