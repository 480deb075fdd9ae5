//! What a user holds: one rank's end of a world.

use std::ops::Range;
use std::sync::Arc;
#[cfg(feature = "nccl")]
use std::sync::OnceLock;

use unisono_collectives::{Algorithm, Chunks, Operation, Rank, Topology, partition};

use crate::call::{Call, Memory, Ran, Why};
use crate::codes::OF_BARRIER;
use crate::collective::{Collective, Engine, Options};
use crate::config::Config;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;
use crate::memory::{Registered, Registry};
use crate::method::{Method, Vendor, is_for_vendors, those_for_vendors};
use crate::request::Seat;
use crate::select::Choice;
use crate::status::{FailureReport, Guard, StatusBoard};
use crate::transport::Transport;
use crate::tuning::Tuning;

mod deadlines;
#[cfg(feature = "nccl")]
mod device;
mod groups;
mod in_flight;
mod lateness;
mod own;
mod per_call;
mod point_to_point;
mod setup;

#[cfg(feature = "nccl")]
pub use device::DeviceRequest;
use lateness::Asked;
pub use lateness::{Lateness, Times};
pub use per_call::CallBuilder;
use per_call::PerCall;

/// One rank's end of a world of ranks that work together.
///
/// Every collective is called by all ranks of the world, in the same order, with buffers of the same length
/// and type. All collectives work in place. A rank that calls something else than the others gets an
/// [`Error::Mismatch`] that names both.
///
/// ```
/// use unisono::{Communicator, ReduceOp};
///
/// let means = unisono::threads(4, |mut comm: Communicator| -> unisono::Result<f32> {
///     let mut gradients = vec![comm.rank() as f32; 1000];
///     comm.all_reduce(&mut gradients, ReduceOp::Mean)?;
///     Ok(gradients[0])
/// });
/// assert!(means.into_iter().all(|mean| mean.unwrap() == 1.5));
/// ```
///
/// # When it is dropped
/// A communicator that came from `Communicator::init` finalises MPI, which waits for the other ranks to
/// do so. If it failed, or its thread panics, it says why and ends the whole job: ranks that wait for it
/// would wait for ever.
#[derive(Debug)]
pub struct Communicator {
    seat: Seat,
    choice: Choice,
    // What does not change, and is asked for while the engine may be with the communication thread.
    rank: Rank,
    topology: Topology,
    transport: &'static str,
    has_mpi: bool,
    turns: f64,
    registry: Arc<Registry>,
    /// What this rank and those of its node know of each other.
    status: StatusBoard,
    /// What calls have beside what they are; nothing, but while a [`CallBuilder`] lives.
    per_call: PerCall,
    /// When all ranks were asked how long they were busy.
    asked: Asked,
    /// It comes after the seat: it still watches while MPI is finalised, which waits for others. And what speaks for this rank.
    guard: Option<(Arc<dyn Guard>, Arc<dyn FailureReport>)>,
    /// What groups of these ranks go by too.
    config: Config,
    constants: (Tuning, usize),
    /// How many groups were made of them.
    groups: u64,
    #[cfg(feature = "nccl")]
    local_rank: Rank,
    #[cfg(feature = "nccl")]
    device: OnceLock<Arc<cudarc::driver::CudaContext>>,
}

impl Communicator {
    /// The number of this rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks the world has.
    pub fn ranks(&self) -> usize {
        self.topology.ranks()
    }

    /// Which node each rank lives on.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// How messages travel: `threads`; `shm` if all ranks share memory, `mpi` if they do not, `shm+mpi` if those of
    /// a node do.
    pub fn transport(&self) -> &'static str {
        self.transport
    }

    /// Whether MPI carries messages between nodes, and its own collectives can be chosen.
    pub fn has_mpi(&self) -> bool {
        self.has_mpi
    }

    /// Whether this node has more ranks than cores, so that they take turns.
    pub fn is_oversubscribed(&self) -> bool {
        self.turns > 1.0
    }

    /// How many ranks of this node share a core, if that is more than one.
    pub(crate) fn turns(&self) -> f64 {
        self.turns
    }

    pub(crate) fn transport_of_engine(&mut self) -> &Transport {
        &self.seat.engine().transport
    }

    /// What this rank and those of its node know of each other.
    pub(crate) fn status(&self) -> &StatusBoard {
        &self.status
    }

    /// What the constants say of a call.
    pub(crate) fn predicted_us(&mut self, algorithm: Algorithm, call: &Call, memory: Memory) -> Option<f64> {
        self.seat.engine().predicted_us(algorithm, call, memory)
    }

    /// The algorithm that was chosen for all calls to come; [`Choice::Auto`] unless the environment
    /// (`UNISONO_ALGORITHM`) or [`Communicator::set_choice`] say otherwise.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Chooses an algorithm for all calls to come. All ranks choose the same.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for MPI as a vendor over another transport, and for a vendor in the nodes of an algorithm that
    /// knows no nodes.
    pub fn set_choice(&mut self, choice: Choice) -> Result<()> {
        self.check_choice(&choice)?;
        self.choice = choice;
        Ok(())
    }

    fn check_choice(&self, choice: &Choice) -> Result<()> {
        match choice {
            Choice::Vendor(Vendor::Mpi) | Choice::InNodes(_, Vendor::Mpi) if !self.has_mpi => {
                let these =
                    if self.transport == "threads" { "these are threads" } else { "these have no MPI" };
                Err(Error::Unsupported(format!(
                    "MPI's own collectives need ranks under mpirun; {these}: choose another algorithm"
                )))
            }
            Choice::InNodes(algorithm, _) if !is_for_vendors(*algorithm) => Err(Error::Unsupported(format!(
                "{algorithm} has no phases inside of nodes; choose {}, which have",
                those_for_vendors()
            ))),
            _ => Ok(()),
        }
    }

    /// What would carry out a call now, and why.
    pub fn selection(&mut self, call: &Call) -> Ran {
        match self.per_call.choice_or(&self.choice).on_host(call.operation) {
            Choice::Vendor(vendor) => {
                let method = Method::Vendor(*vendor);
                Ran { method, why: Why::AskedFor, link: method.link(self.transport) }
            }
            choice => self.seat.engine().selection(choice, call),
        }
    }

    /// The part of a buffer of `count` elements that is this rank's own: what
    /// [`Communicator::reduce_scatter`] leaves it, and what it gives to [`Communicator::all_gather`].
    pub fn own_part(&self, count: usize) -> Range<usize> {
        partition::elements(count, self.ranks(), Chunks::one(self.rank()))
    }

    /// Registered memory for `count` elements, zero at first: the other ranks of the node reach it where it lies,
    /// so that a collective on it (on any part of it) needs no copy. Every rank may call it by itself, at any
    /// time.
    ///
    /// ```
    /// use unisono::ReduceOp;
    ///
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let mut gradients = comm.alloc::<f32>(1 << 16)?;
    ///     gradients.fill(1.0);
    ///     comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    ///     assert_eq!(gradients[..2], [2.0, 2.0]);
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if the system has not that much.
    ///
    /// # Panics
    /// If so many elements are more than an address can count.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Registered<T>> {
        Registered::new(&self.registry, count)
    }

    /// Every rank ends with the reduction of all buffers, the same bits on all ranks.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if ranks call different things, [`Error::Timeout`], [`Error::Left`] and
    /// [`Error::Aborted`] if another rank does not come, [`Error::Failed`] if this rank cannot go on. After those the communicator
    /// [is lost](Error::is_fatal). [`Error::Unsupported`] refuses the call, if what was chosen by name cannot be had.
    pub fn all_reduce<T: Element>(&mut self, buffer: &mut [T], op: ReduceOp) -> Result<Ran> {
        self.run(Operation::AllReduce, Some(op), buffer)
    }

    /// Every rank ends with its own part of the reduction of all buffers, which is returned; the rest of
    /// its buffer is undefined.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter<'a, T: Element>(
        &mut self,
        buffer: &'a mut [T],
        op: ReduceOp,
    ) -> Result<&'a mut [T]> {
        self.run(Operation::ReduceScatter, Some(op), buffer)?;
        let own = self.own_part(buffer.len());
        Ok(&mut buffer[own])
    }

    /// Every rank gives [its own part](Communicator::own_part) of the buffer and ends with all parts.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather<T: Element>(&mut self, buffer: &mut [T]) -> Result<Ran> {
        self.run(Operation::AllGather, None, buffer)
    }

    /// Every rank ends with the root's buffer.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If there is no such root.
    pub fn broadcast<T: Element>(&mut self, buffer: &mut [T], root: Rank) -> Result<Ran> {
        self.run(Operation::Broadcast { root }, None, buffer)
    }

    /// The root ends with the reduction of all buffers; the other buffers are undefined.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If there is no such root.
    pub fn reduce<T: Element>(&mut self, buffer: &mut [T], op: ReduceOp, root: Rank) -> Result<Ran> {
        self.run(Operation::Reduce { root }, Some(op), buffer)
    }

    /// Every rank gives [its own part](Communicator::own_part) of the buffer, and the root ends with all
    /// parts.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If there is no such root.
    pub fn gather<T: Element>(&mut self, buffer: &mut [T], root: Rank) -> Result<Ran> {
        self.run(Operation::Gather { root }, None, buffer)
    }

    /// Every rank ends with its own part of the root's buffer, which is returned; the rest of the buffer is
    /// undefined, but on the root.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If there is no such root.
    pub fn scatter<'a, T: Element>(&mut self, buffer: &'a mut [T], root: Rank) -> Result<&'a mut [T]> {
        self.run(Operation::Scatter { root }, None, buffer)?;
        let own = self.own_part(buffer.len());
        Ok(&mut buffer[own])
    }

    /// The buffer is one block for each rank; block `j` of rank `i` becomes block `i` of rank `j`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If the length of the buffer is not a multiple of the number of ranks.
    pub fn all_to_all<T: Element>(&mut self, buffer: &mut [T]) -> Result<Ran> {
        self.run(Operation::AllToAll, None, buffer)
    }

    /// What carries out a barrier.
    pub(crate) const OF_BARRIER: Algorithm = OF_BARRIER;

    /// No rank returns before all ranks have called it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn barrier(&mut self) -> Result<()> {
        self.collective(Choice::Algorithm(Self::OF_BARRIER))?.run(&Call::barrier(), &mut []).map(drop)
    }

    /// The collective that a choice names, over this communicator: the interface that benchmarks and tests
    /// use.
    ///
    /// # Errors
    /// As [`Communicator::set_choice`]; [`Error::Aborted`] after a failure.
    pub fn collective(&mut self, choice: Choice) -> Result<impl Collective + '_> {
        self.seat.engine().check_alive()?;
        self.check_choice(&choice)?;
        Ok(Chosen { engine: self.seat.engine(), options: &self.per_call.options, choice })
    }

    /// Says that this rank cannot go on. Ranks that are threads learn of it at once; under MPI the job ends
    /// when the communicator is dropped. Later calls fail with [`Error::Aborted`].
    pub fn fail(&mut self, cause: &str) {
        drop(self.seat.engine().fail(cause));
    }

    /// What every blocking collective comes to.
    fn run<T: Element>(
        &mut self,
        operation: Operation,
        op: Option<ReduceOp>,
        buffer: &mut [T],
    ) -> Result<Ran> {
        let call = self.checked::<T>(operation, op, buffer.len());
        self.check_choice_of_call()?;
        let Self { seat, choice, per_call, .. } = self;
        let choice = per_call.choice_or(choice).on_host(operation);
        seat.engine().run(choice, &per_call.options, &call, bytemuck::cast_slice_mut(buffer))
    }

    /// A call on a buffer of `count` elements, blocking or in flight.
    ///
    /// # Panics
    /// If there is no such root, or if an all-to-all has no blocks of equal size.
    #[inline]
    fn checked<T: Element>(&self, operation: Operation, op: Option<ReduceOp>, count: usize) -> Call {
        let ranks = self.ranks();
        if let Some(root) = operation.root() {
            assert!(root < ranks, "root {root} is not in a world of {ranks} ranks");
        }
        if operation == Operation::AllToAll {
            assert!(count.is_multiple_of(ranks), "{count} elements are not {ranks} blocks of equal size");
        }
        Call { operation, op, dtype: T::DTYPE, count }
    }
}

/// What a choice names.
#[derive(Debug)]
struct Chosen<'a> {
    engine: &'a mut Engine,
    options: &'a Options,
    choice: Choice,
}

impl Collective for Chosen<'_> {
    fn run(&mut self, call: &Call, buffer: &mut [u8]) -> Result<Ran> {
        self.engine.run(&self.choice, self.options, call, buffer)
    }
}
