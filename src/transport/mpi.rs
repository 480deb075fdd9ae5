//! Ranks that are processes under an MPI launcher: messages through MPI between nodes, or over our own connections where MPI has
//! nothing better than TCP, and through shared memory inside them.
//!
//! MPI only carries bytes between two ranks; reductions are our own. All waits poll with deadlines. Only set-up, finalisation
//! and MPI's own collectives (a baseline) block inside MPI.

use std::sync::Arc;
use std::thread::ThreadId;

use unisono_collectives::{Rank, Topology};

use super::agreement::agree;
use super::bootstrap::gather;
use super::half::{Half as _, complete};
use super::join::{Joined, join, name};
use super::node::Sharing;
use super::shared::Shared;
use super::tcp::Tcp;
use super::{Deadlines, Failure, Header, Incoming, Outgoing, Waiting};
use crate::config::{Config, Launcher, OnFailure};
use crate::error::{Error, Result};
use crate::status::{FailureReport, StatusBoard, panicked};

mod beside;
mod between;
mod bootstrap;
mod ending;
mod exchange;
mod flight;
mod launch;
mod messages;
mod overheard;
mod own;
mod reductions;
mod sys;
mod wire;

use bootstrap::OfComm;
use ending::{end_job, report_failure};
use exchange::Messages;
pub(crate) use launch::{alone_in_job, library_fits};
pub(super) use messages::Line;
use reductions::Reductions;
pub(crate) use sys::library_version;
use sys::{Comm, State, User};

/// The error when MPI is already finalised.
const OVER: &str = "MPI was finalised in this process, when its first communicator was dropped or by the program, and cannot be \
                    initialised again: keep one communicator for as long as there is something to communicate";

/// One rank's handle to an MPI world.
#[derive(Debug)]
pub(crate) struct Mpi {
    comm: Comm,
    rank: Rank,
    topology: Topology,
    node_cores: usize,
    /// The ranks of this node, if they share memory.
    node: Option<Shared>,
    /// Our own connections with all others, if MPI has nothing better.
    tcp: Option<Tcp>,
    status: StatusBoard,
    /// The failure report of this rank, if it has one.
    report: Option<Arc<dyn FailureReport>>,
    name: &'static str,
    messages: Messages,
    groups: Vec<own::OfGroup>,
    reductions: Reductions,
    /// Whether one of MPI's own collectives failed while MPI still held the caller's buffer.
    stranded: bool,
    spins: u32,
    /// Whether this communicator initialised MPI, and therefore finalises it.
    owns_mpi: bool,
    /// The only thread that may call MPI, if the thread level is below `MPI_THREAD_SERIALIZED`.
    only_thread: Option<ThreadId>,
    /// The cause of this rank's failure.
    cause: Option<String>,
    /// What a failure does to the job.
    on_failure: OnFailure,
    _user: User,
}

impl Mpi {
    /// Initialises MPI and joins the launched world. All ranks call it, including those with invalid settings, since the others
    /// wait for them.
    pub(crate) fn init(config: Result<Config>) -> Result<(Self, Config)> {
        match sys::state()? {
            State::NotYet => {}
            State::Up => {
                return Err(Error::Launch(
                    "MPI is already initialised: attach to it instead of initialising it".into(),
                ));
            }
            State::Over => return Err(Error::Launch(OVER.into())),
        }
        let _watch = launch::before_mpi(&config)?;
        sys::init()?;
        let begun = Self::new(Comm::world(), true, config);
        if let Err(Error::Launch(_) | Error::Setting(_)) = &begun {
            // All ranks have this error, and finalise together.
            sys::finalize()?;
        }
        begun
    }

    /// Joins a communicator of an MPI that is already initialised.
    pub(crate) fn attach(raw: ::mpi::ffi::MPI_Comm, config: Result<Config>) -> Result<(Self, Config)> {
        match sys::state()? {
            State::Up => {}
            State::NotYet => {
                return Err(Error::Launch("MPI is not initialised: there is nothing to attach to".into()));
            }
            State::Over => return Err(Error::Launch(OVER.into())),
        }
        let _watch = launch::before_mpi(&config)?;
        Self::new(Comm::from_raw(raw), false, config)
    }

    fn new(parent: Comm, owns_mpi: bool, config: Result<Config>) -> Result<(Self, Config)> {
        launch::check_world()?;
        Self::over(parent.duplicate()?, owns_mpi, config)
    }

    /// The transport of a group. Its members call it, and no other ranks.
    pub(crate) fn group(&self, members: &[Rank], config: &Config) -> Result<Self> {
        self.check_thread();
        let comm = self.comm.of_group(members)?;
        Self::over(comm, false, Ok(config.clone())).map(|(group, _)| group)
    }

    /// The transport over a communicator of our own.
    fn over(comm: Comm, owns_mpi: bool, config: Result<Config>) -> Result<(Self, Config)> {
        let user = User::new();
        let mut bootstrap = OfComm::new(comm)?;
        let (config, odd) = match agree(&mut bootstrap, config, &library_version()) {
            Ok(agreed) => agreed,
            Err(error) => {
                comm.free()?;
                return Err(error);
            }
        };
        let (rank, topology) = (comm.rank()?, topology(&leaders(comm)?));
        let odd = odd.into_iter().chain(alone_in_job(topology.ranks(), Launcher::detect())).collect();
        let declared = config.nodes.as_ref().filter(|declared| declared.ranks() == topology.ranks());
        let Joined { node_cores, spins, status, sharing } =
            join(&mut bootstrap, (&topology, declared), &config, odd)?;
        let only_thread = (!sys::any_thread_may_call()?).then(|| std::thread::current().id());
        let far = (0..topology.ranks()).map(|other| topology.node_of(other) != topology.node_of(rank));
        let messages = Messages::new(spins, config.segment_bytes, far.collect());
        let node = match sharing {
            Sharing::Done(node) => Some(*node),
            Sharing::Alone => None,
            Sharing::Cannot(why) => {
                if topology.local_rank(rank) == 0 {
                    launch::say(&format!("{why}: their messages go through MPI"));
                }
                None
            }
        };
        let tcp = between::connect(&mut bootstrap, &topology, node.as_ref(), (&config, spins))?;
        // A rank may be alone on its node while others are not.
        let sharing = gather(&mut bootstrap, [node.as_ref().map_or(1, |node| node.members().len()) as u64])?;
        let name = name(&sharing, if tcp.is_some() { "tcp" } else { "mpi" });
        let cause = None;
        let own = Self {
            comm,
            rank,
            topology,
            node_cores,
            node,
            tcp,
            status,
            report: None,
            name,
            messages,
            groups: Vec::new(),
            reductions: Reductions::tried(comm)?,
            stranded: false,
            spins,
            owns_mpi,
            only_thread,
            cause,
            on_failure: config.on_failure,
            _user: user,
        };
        Ok((own, config))
    }

    /// # Errors
    /// [`Error::Unsupported`] if only the thread that initialised MPI may call it.
    pub(crate) fn check_other_threads(&self) -> Result<()> {
        match self.only_thread {
            None => Ok(()),
            Some(_) => Err(Error::Unsupported(
                "a collective in flight needs MPI_THREAD_SERIALIZED, and MPI was initialised with less: let \
                 unisono::init() initialise it, or ask MPI_Init_thread for MPI_THREAD_SERIALIZED"
                    .into(),
            )),
        }
    }

    pub(crate) fn set_spins(&mut self, spins: u32) {
        self.spins = spins;
        self.messages.set_spins(spins);
        if let Some(tcp) = &self.tcp {
            tcp.set_spins(spins);
        }
        if let Some(node) = &mut self.node {
            node.set_spins(spins);
        }
    }

    /// The links of this world: `mpi` or `tcp`, `shm` if all ranks share memory, or both. The same on all ranks.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The state that the ranks of this node publish to each other.
    pub(crate) fn status(&self) -> &StatusBoard {
        &self.status
    }

    /// The shared-memory transport among the ranks of this node.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.node.as_ref()
    }

    pub(crate) fn shared_mut(&mut self) -> Option<&mut Shared> {
        self.node.as_mut()
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(crate) fn node_cores(&self) -> usize {
        self.node_cores
    }

    pub(crate) fn exchange(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        if let Some(tcp) = &self.tcp {
            let over = (self.node.as_mut(), &self.status);
            return tcp.exchange(over, header, outgoing, incoming, deadlines);
        }
        let is_near = |rank| self.node.as_ref().is_some_and(|node| node.has(rank));
        let to_near = outgoing.as_ref().map(|outgoing| is_near(outgoing.to));
        let from_near = incoming.as_ref().map(|incoming| is_near(incoming.from));
        match (to_near, from_near, &mut self.node) {
            (Some(true), Some(true) | None, Some(node)) | (None, Some(true), Some(node)) => {
                if !self.messages.flights.are_none() {
                    return self.exchange_beside(header, outgoing, incoming, deadlines);
                }
                node.exchange(header, outgoing, incoming, deadlines)
            }
            (Some(to_near), Some(from_near), Some(_)) if to_near != from_near => {
                self.exchange_with_both(header, (outgoing, to_near), incoming, deadlines)
            }
            _ => {
                self.check_thread();
                self.messages.exchange((self.comm, &self.status), header, outgoing, incoming, deadlines)
            }
        }
    }

    /// An exchange with one rank of this node and one of another.
    fn exchange_with_both(
        &mut self,
        header: &Header,
        (outgoing, to_near): (Option<Outgoing<'_>>, bool),
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        self.check_thread();
        let node = self.node.as_mut().expect("one of the two is near");
        let (near, far) =
            if to_near { ((outgoing, None), (None, incoming)) } else { ((None, incoming), (outgoing, None)) };
        let (mut near_send, mut near_receive, around) = node.halves(header, near.0, near.1);
        let mut waiting = Waiting::new(self.spins, deadlines, &self.status);
        self.messages.halves(
            (self.comm, &self.status),
            header,
            far.0,
            far.1,
            |far_send, far_receive, mut listening| {
                near_send.progress()?;
                exchange::begin(far_send, far_receive, &mut listening, &mut waiting)?;
                let look = |other, waiting: &Waiting<'_>| {
                    let far = listening.look_around(other, waiting)?;
                    // Messages of a rank of this node are here before it leaves.
                    if around.has(other) { around.look(other, waiting) } else { Ok(far) }
                };
                if to_near {
                    complete(&mut near_send, far_receive, waiting, look)
                } else {
                    complete(far_send, &mut near_receive, waiting, look)
                }
            },
        )
    }

    /// Sets the failure report of this rank.
    pub(crate) fn set_failure_report(&mut self, report: Arc<dyn FailureReport>) {
        self.messages.set_failure_report(Arc::clone(&report));
        self.report = Some(report);
    }

    /// Reports and remembers why this rank cannot continue; dropping the communicator ends the job.
    pub(crate) fn fail(&mut self, first: Rank, cause: &str) {
        if self.cause.is_none() {
            self.cause = Some(cause.to_owned());
            report_failure(self.report.as_deref(), &self.status, (first, cause));
        }
    }

    /// Ends the job if MPI still holds a buffer that would return to the caller, or a message (`holds_message`).
    pub(crate) fn end_if_stranded(&self, holds_message: bool) {
        if holds_message || self.stranded || self.messages.are_stranded() {
            end_job(&self.status);
        }
    }

    fn check_thread(&self) {
        sys::check_thread(self.only_thread);
    }
}

/// The topology, given the leader of every rank; nodes are numbered in the order of their leaders.
fn topology(leaders: &[u64]) -> Topology {
    let mut nodes: Vec<_> = leaders.to_vec();
    nodes.sort_unstable();
    nodes.dedup();
    let node = |leader| nodes.binary_search(leader).expect("every leader leads a node");
    Topology::from_node_of(leaders.iter().map(node).collect())
}

/// The leader of every rank's node: the world rank of its local rank 0. All ranks call it.
fn leaders(comm: Comm) -> Result<Vec<u64>> {
    let node = comm.node()?;
    let leader = node.all_gather(comm.rank()? as u64)?[0];
    node.free()?;
    comm.all_gather(leader)
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail(self.rank, &panicked());
        } else if !self.messages.flights.are_none() || self.tcp.as_ref().is_some_and(|tcp| !tcp.is_idle()) {
            self.fail(self.rank, "it left a collective before its end");
        }
        // `MPI_Finalize` and `MPI_Comm_free` would wait for ranks that wait for this one.
        if self.cause.is_some() {
            match self.on_failure {
                OnFailure::EndJob => end_job(&self.status),
                OnFailure::ReturnError => return self.leave_behind(),
            }
        }
        if !matches!(sys::state(), Ok(State::Up)) {
            return;
        }
        // The last rank to drop it frees the memory.
        self.node = None;
        self.status.leave(self.rank);
        if self.owns_mpi {
            self.wait_for_all();
        }
        let freed = self.free_groups().and_then(|()| self.comm.free());
        let ended = freed.and_then(|()| if self.owns_mpi { sys::finalize() } else { Ok(()) });
        if let Err(error) = ended {
            tracing::warn!(rank = self.rank, %error, "MPI did not end cleanly");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_leaders() {
        assert_eq!(topology(&[0, 1, 0, 1, 4]), Topology::from_node_of(vec![0, 1, 0, 1, 2]));
    }
}
