//! Ranks that are processes of several nodes, without MPI: connections of our own between nodes, and shared memory inside them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use unisono_collectives::{Rank, Topology};

use super::bootstrap::{Bootstrap, gather};
use super::join::{Joined, name};
use super::node::Sharing;
use super::shared::Shared;
use super::tcp::{self, Tcp};
use super::{Deadlines, Failure, Header, Incoming, Outgoing, Target, Ticket};
use crate::config::{Config, Interfaces};
use crate::error::{Error, Result};
use crate::status::{FailureReport, StatusBoard, panicked};
use crate::system;

/// One rank's handle to such a world.
#[derive(Debug)]
pub(crate) struct Nodes {
    rank: Rank,
    topology: Topology,
    node_cores: usize,
    /// The ranks of this node, if they share memory.
    node: Option<Shared>,
    tcp: Tcp,
    status: StatusBoard,
    report: Option<Arc<dyn FailureReport>>,
    name: &'static str,
    spins: u32,
}

impl Nodes {
    /// Connects the ranks of a world that have joined it. All ranks call it.
    ///
    /// # Errors
    /// [`Error::Launch`], on all ranks, if they cannot connect.
    pub(super) fn connect(
        bootstrap: &mut dyn Bootstrap,
        topology: Topology,
        joined: Joined,
        config: &Config,
    ) -> Result<Self> {
        let Joined { node_cores, spins, status, sharing } = joined;
        let rank = bootstrap.rank();
        let node = match sharing {
            Sharing::Done(node) => Some(*node),
            Sharing::Alone => None,
            Sharing::Cannot(why) => {
                if topology.local_rank(rank) == 0 {
                    system::say(&format!("unisono: {why}: their messages go over TCP\n"));
                }
                None
            }
        };
        let is_near = |other| node.as_ref().is_some_and(|node| node.has(other));
        let (interfaces, has_controls) = (Interfaces::from_environment(), config.watched_by_ranks());
        let connected = tcp::connect(bootstrap, |other| !is_near(other), &interfaces, (spins, has_controls))?;
        let tcp = connected.map_err(|why| {
            Error::Launch(format!(
                "{why}; UNISONO_INTERFACE names the interface or network between the nodes"
            ))
        })?;
        // A rank may be alone on its node while others are not.
        let sharing = gather(bootstrap, [node.as_ref().map_or(1, |node| node.members().len()) as u64])?;
        let name = name(&sharing, "tcp");
        Ok(Self { rank, topology, node_cores, node, tcp, status, report: None, name, spins })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
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

    pub(crate) fn spins(&self) -> u32 {
        self.spins
    }

    pub(crate) fn set_spins(&mut self, spins: u32) {
        self.spins = spins;
        self.tcp.set_spins(spins);
        if let Some(node) = &mut self.node {
            node.set_spins(spins);
        }
    }

    pub(crate) fn exchange(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> std::result::Result<(), Failure> {
        self.tcp.exchange((self.node.as_mut(), &self.status), header, outgoing, incoming, deadlines)
    }

    pub(crate) fn post(
        &self,
        header: &Header,
        outgoing: &Outgoing<'_>,
        size_bytes: usize,
    ) -> std::result::Result<Ticket, Failure> {
        self.tcp.post(&self.status, header, outgoing, size_bytes)
    }

    pub(crate) fn complete(
        &self,
        header: &Header,
        ticket: Ticket,
        target: &mut Target<'_>,
        deadlines: &Deadlines,
    ) -> std::result::Result<(), Failure> {
        self.tcp.complete(&self.status, header, ticket, target, deadlines)
    }

    /// The connections for point-to-point messages.
    pub(super) fn take_messages(&mut self) -> Option<tcp::Line> {
        self.tcp.take_messages()
    }

    /// As [`Tcp::take_controls`].
    pub(crate) fn take_controls(&mut self) -> Vec<(Rank, OwnedFd)> {
        self.tcp.take_controls()
    }

    pub(crate) fn set_failure_report(&mut self, report: Arc<dyn FailureReport>) {
        self.report = Some(report);
    }

    /// Marks this rank as failed and informs the other ranks.
    pub(crate) fn fail(&self, first: Rank, cause: &str) {
        match &self.report {
            Some(report) => report.fail(first, cause),
            None => drop(self.status.fail(self.rank, first, cause)),
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail(self.rank, &panicked());
        } else if !self.tcp.is_idle() {
            self.fail(self.rank, "it left a collective before its end");
        }
        self.status.leave(self.rank);
        if let Some(report) = &self.report {
            report.hurry();
        }
    }
}
