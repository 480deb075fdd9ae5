//! Groups: communicators over a subset of the ranks.

use std::sync::Arc;

use unisono_collectives::Rank;

use super::Communicator;
use crate::collective::Options;
use crate::config::{Config, Constants, Inside, Network};
use crate::dtype::Element;
use crate::error::{Error, Place, Result};
use crate::transport::{Bootstrap, Fabric, gather, gather_padded};

impl Communicator {
    /// Splits the ranks into one communicator per color, numbered by key and, among equal keys, by their rank here
    /// (`MPI_Comm_split`). A rank without a color is in no group and gets `None`. All ranks call it.
    ///
    /// The new communicator inherits the algorithm choice, timeouts and constants. It may be used on another thread at the same
    /// time as this one, and dropped before or after it. Over MPI, creating a group, and MPI's own collectives, block in MPI and
    /// keep other threads out of it. Use all communicators on one thread then, since groups on two threads could wait for each
    /// other for ever. A rank that fails aborts all groups that it is in. A rank that ends because of an error of its own calls
    /// [`Communicator::fail`] before it drops a group; otherwise the other ranks are only informed that it left.
    ///
    /// ```
    /// use unisono::ReduceOp;
    ///
    /// let ended = unisono::threads(4, |mut comm| -> unisono::Result<()> {
    ///     // Two pairs: ranks 0 and 2, and ranks 1 and 3.
    ///     let color = comm.rank() % 2;
    ///     let mut pair = comm.split(Some(color), 0)?.expect("every rank has a color");
    ///     let mut sum = [comm.rank() as u64];
    ///     pair.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///     assert_eq!(sum, [[2], [4]][color]);
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. If a group cannot be set up, for lack of memory for example, this communicator is lost too,
    /// with [`Error::Failed`](crate::Error::Failed). The other ranks may have set up their groups.
    pub fn split(&mut self, color: Option<usize>, key: i64) -> Result<Option<Self>> {
        let all = gather(&mut self.as_bootstrap("split"), &(color, key))?;
        let mut members: Vec<_> = (0..self.ranks()).filter(|&rank| all[rank].0 == color).collect();
        members.sort_by_key(|&rank| all[rank].1);
        let group = self.of_members(members);
        let group = self.engine_owner.engine().settle(group)?;
        Ok(color.is_some().then_some(group))
    }

    /// Creates a communicator of these ranks, numbered in this order (`MPI_Comm_create`); the others get `None`. All ranks call
    /// it, with the same list.
    ///
    /// # Errors
    /// As [`Communicator::split`]; [`Error::Mismatch`](crate::Error::Mismatch) if ranks pass different lists.
    ///
    /// # Panics
    /// If the list contains a rank that is not in this world, or the same rank twice.
    pub fn group(&mut self, ranks: &[Rank]) -> Result<Option<Self>> {
        for (place, &rank) in ranks.iter().enumerate() {
            assert!(rank < self.ranks(), "rank {rank} is not in a world of {} ranks", self.ranks());
            assert!(!ranks[..place].contains(&rank), "rank {rank} appears twice in {ranks:?}");
        }
        let place = ranks.iter().position(|&rank| rank == self.rank());
        let all = gather(&mut self.as_bootstrap("group"), &ranks.to_vec())?;
        self.check_same("group", &all, |rank| format!("group of {:?}", all[rank]))?;
        self.split(place.map(|_| 0), place.unwrap_or(0) as i64)
    }

    /// Checks that all ranks have passed the same value to an operation. `all` has the gathered values. `called` describes a rank's call.
    pub(super) fn check_same<T: PartialEq>(
        &mut self,
        operation: &'static str,
        all: &[T],
        called: impl Fn(Rank) -> String,
    ) -> Result<()> {
        let rank = self.rank();
        let Some(other) = all.iter().position(|other| *other != all[rank]) else { return Ok(()) };
        let (sequence, algorithm) = (self.groups, "comparison");
        let at = Place { rank, operation, sequence, algorithm, phase: algorithm, step: 0 };
        let (ours, theirs) = (called(rank), called(other));
        let error = Error::Mismatch { at: Box::new(at), ours, other, theirs };
        self.fail(&error.to_string());
        Err(error)
    }

    /// Returns a communicator of this rank and the ranks that pass the same members. All ranks call it.
    fn of_members(&mut self, members: Vec<Rank>) -> Result<Self> {
        self.groups += 1;
        // Without MPI, a group takes the link that its world has chosen. Not all groups might choose it, and all ranks must make the same number of
        // all-gathers.
        let network = match self.config.network {
            Network::Auto if self.has_mpi || self.config.nodes.is_some() => Network::Auto,
            Network::Auto if self.transport.ends_with("ucx") => Network::Ucx,
            Network::Auto if self.transport.ends_with("tcp") => Network::Tcp,
            network => network,
        };
        let config = Config { network, ..self.config_among(&members, &self.name_of_group(&members)) };
        let (transport, config) = match self.engine_owner.engine().transport.group(&members, &config) {
            Some(group) => (group?, config),
            None => Fabric::processes(
                &mut GroupBootstrap { world: &mut *self, members: members.clone(), function: "split" },
                Ok(config),
            )?,
        };
        let mut group = self.derived(transport, &config)?;
        group.set_group_guard(self, members.into())?;
        Ok(group)
    }

    /// Returns a communicator of some of these ranks that inherits the settings of this one.
    pub(super) fn derived(&mut self, transport: Fabric, config: &Config) -> Result<Self> {
        let mut derived = Self::new(transport, config)?;
        derived.choice = self.choice.clone();
        derived.set_constants(self.constants.clone());
        derived.engine_owner.set_limits(self.engine_owner.limits());
        derived.local_rank = self.local_rank;
        #[cfg(feature = "nccl")]
        {
            derived.device = self.device.clone();
        }
        Ok(derived)
    }

    /// Returns the name of the latest group, identical on all its ranks.
    fn name_of_group(&self, members: &[Rank]) -> String {
        format!("group-{}-of-rank-{}", self.groups, members[0])
    }

    /// Returns the settings of a communicator of these ranks, without the warnings that the world has already printed. Its flight
    /// recorder files are in a folder of this name.
    pub(super) fn config_among(&self, members: &[Rank], name: &str) -> Config {
        let nodes = self.config.nodes.as_ref().map(|nodes| nodes.among(members));
        let flight_dir = Some(self.status.flight_dir().join(name));
        // Threads always share memory. The setting `inside` applies to processes.
        let inside = if self.has_mpi { self.config.inside } else { Inside::SharedMemory };
        let (algorithm, constants, warnings, connects) = (None, Constants::Default, false, self.connects());
        Config { nodes, algorithm, constants, warnings, flight_dir, inside, connects, ..self.config.clone() }
    }

    /// Returns whether Unisono's links connect these ranks.
    pub(super) fn connects(&self) -> bool {
        !self.has_mpi && !matches!(self.transport, "shm" | "threads")
    }

    /// Sets the guard of the group, which depends on that of the world.
    fn set_group_guard(&mut self, world: &Self, ranks: Box<[Rank]>) -> Result<()> {
        self.status.set_parent(world.status.clone(), ranks.clone());
        if let Some(observer) = world.status.observer() {
            self.status.set_observer(observer.of_group(&world.name_of_group(&ranks), &ranks));
        }
        let Some(of_world) = &world.guard else { return Ok(()) };
        let controls = self.take_controls();
        let watched = Arc::clone(of_world).of_group(&self.status, &ranks, controls);
        let failed =
            |cause| Error::Launch(format!("cannot set up the failure detection of a group: {cause}"));
        self.guard(watched.map_err(failed)?.unwrap_or_else(|| Arc::clone(of_world)));
        Ok(())
    }

    /// Returns the bootstrap of a set-up function. If ranks call different functions, their mismatch names both.
    pub(crate) fn as_bootstrap(&mut self, function: &'static str) -> GroupBootstrap<'_> {
        let members = (0..self.ranks()).collect();
        GroupBootstrap { world: self, members, function }
    }

    /// Returns whether a rank has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.status.check_peers();
        self.status.failure().is_some()
    }

    /// All-gathers elements, the same number from each rank, rank 0 first. All ranks call it.
    fn gather_equal<T: Element>(&mut self, own: &[T], function: &str) -> Result<Vec<T>> {
        let label = self.status.intern(function);
        let engine = self.engine_owner.engine();
        engine.begin()?;
        let options = Options { timeout: self.per_call.options.timeout, label, ..Options::default() };
        let all = engine.gather(own, &options);
        engine.settle(all)
    }
}

/// The bootstrap of a group, over collectives of the world. Each rank is in some group, so all ranks make the same number of collectives.
#[derive(Debug)]
pub(crate) struct GroupBootstrap<'a> {
    world: &'a mut Communicator,
    members: Vec<Rank>,
    function: &'static str,
}

impl Bootstrap for GroupBootstrap<'_> {
    fn rank(&self) -> Rank {
        let own = self.world.rank();
        self.members.iter().position(|&rank| rank == own).expect("a rank is in its group")
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = gather_padded(own, |own| self.world.gather_equal(own, self.function))?;
        Ok(self.members.iter().map(|&rank| std::mem::take(&mut all[rank])).collect())
    }

    fn has_failed(&self) -> bool {
        self.world.has_failed()
    }
}
