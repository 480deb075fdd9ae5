//! [`Communicator`]: one rank's handle to a world.

use std::ops::Range;
use std::sync::Arc;
#[cfg(feature = "nccl")]
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use unisono_collectives::model::Machine;
use unisono_collectives::partition::Partition;
use unisono_collectives::{Algorithm, Chunks, Operation, Rank, Topology};

use crate::call::{Call, Memory, Ran, scaled};
use crate::codes::OF_BARRIER;
use crate::collective::Collective;
use crate::config::Config;
use crate::dtype::Element;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::kernels::ReduceOp;
use crate::memory::{Registered, Registry};
use crate::request::EngineOwner;
use crate::select::Choice;
use crate::status::{Guard, StatusBoard};
use crate::transport::{Fabric, Messages};
use crate::tuning::Tuning;

mod all_to_all_v;
mod choice;
mod deadlines;
#[cfg(feature = "nccl")]
mod device;
mod groups;
mod grow;
mod in_flight;
mod lateness;
mod per_call;
mod plan;
mod point_to_point;
mod setup;
mod shared;
mod shrink;

pub(crate) use choice::check_phases;
#[cfg(feature = "nccl")]
pub use device::DeviceRequest;
pub(crate) use grow::{Growing, join};
pub use lateness::{Lateness, Times};
pub use per_call::CallBuilder;
use per_call::PerCall;
pub use plan::Planned;

/// One rank's handle to a world of ranks.
///
/// All ranks of the world call the same collectives, in the same order, with buffers of the same length and type. All
/// collectives work in place. If ranks call different collectives, they get an [`Error::Mismatch`] that names both.
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
/// # Drop
/// Dropping a communicator created by [`init`](crate::init()) finalises MPI, which waits until the other ranks do the same. If the
/// communicator has failed or its thread panics, it reports the cause and aborts the job instead, since the other ranks would
/// wait for ever.
#[derive(Debug)]
pub struct Communicator {
    engine_owner: EngineOwner,
    /// Point-to-point messages, which do not need the engine.
    messages: Messages,
    choice: Choice,
    // Constant. Stored here because the engine may be on the communication thread.
    rank: Rank,
    topology: Topology,
    transport: &'static str,
    has_mpi: bool,
    is_oversubscribed: bool,
    registry: Registry,
    status: StatusBoard,
    /// The options of the next calls; the defaults unless a [`CallBuilder`] is alive.
    per_call: PerCall,
    /// The start of the interval that the next [`Communicator::lateness`] reports, and the time for which this rank had waited before.
    interval: (Instant, Duration),
    /// The guard of this rank. It is dropped after the engine, since it also guards `MPI_Finalize`, which waits for other ranks.
    guard: Option<Arc<dyn Guard>>,
    /// Also the settings of groups of these ranks.
    config: Config,
    constants: (Tuning, usize),
    /// The number of groups made from this communicator.
    groups: u64,
    /// The rank that each rank had before [`Communicator::shrink`]; empty if that did not create this communicator.
    former_ranks: Box<[Rank]>,
    /// The number of ranks that must be left after a failure.
    minimum_ranks: Option<usize>,
    /// The number of this rank among those of its node, which determines its GPU.
    local_rank: Rank,
    #[cfg(feature = "nccl")]
    device: OnceLock<Arc<cudarc::driver::CudaContext>>,
}

impl Communicator {
    /// Returns the number of this rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks in the world.
    pub fn ranks(&self) -> usize {
        self.topology.ranks()
    }

    /// Returns the node of each rank.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the links between ranks: `threads`; `shm` if all ranks share memory; `mpi` if none do; `shm+mpi` if the ranks
    /// of a node do.
    pub fn transport(&self) -> &'static str {
        self.transport
    }

    /// Returns whether MPI carries the messages between nodes, and its own collectives can be chosen.
    pub fn has_mpi(&self) -> bool {
        self.has_mpi
    }

    /// Returns whether a node has more ranks than cores (oversubscribed); identical on all ranks.
    pub fn is_oversubscribed(&self) -> bool {
        self.is_oversubscribed
    }

    /// Returns the core count of a node that the cost model assumes: rank 0's, on all ranks.
    pub(crate) fn cores(&self) -> usize {
        self.constants.1
    }

    pub(crate) fn transport_of_engine(&mut self) -> &Fabric {
        &self.engine_owner.engine().transport
    }

    pub(crate) fn status(&self) -> &StatusBoard {
        &self.status
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Predicts the time of a call by the cost model, in microseconds; `None` if the algorithm does not offer the operation among these
    /// ranks.
    ///
    /// # Panics
    /// If the root is not a rank of this world.
    pub fn predicted_us(&mut self, algorithm: Algorithm, call: &Call, memory: Memory) -> Option<f64> {
        self.engine_owner.engine().predicted_us(algorithm, call, memory)
    }

    /// Returns the constants of the cost model, for slices.
    pub fn machine(&mut self) -> &Machine {
        self.engine_owner.engine().selector.machine(Memory::Slice as usize)
    }

    /// Returns the range of a buffer of `count` elements that this rank owns: the range of its result of
    /// [`Communicator::reduce_scatter`], and of its contribution to [`Communicator::all_gather`]. The parts of ranks differ by at
    /// most one element, the larger ones first, unless [`CallBuilder::counts`] sets them.
    pub fn own_part(&self, count: usize) -> Range<usize> {
        let own = Chunks::one(self.rank());
        match &self.per_call.options.parts {
            None => Partition::fair(count, self.ranks()).elements(own),
            Some(parts) => parts.elements(own),
        }
    }

    /// Allocates registered memory for `count` elements, zeroed. The other ranks of the node access it in place, so a collective
    /// on any part of it needs no copy. A local operation: ranks may call it independently, at any time.
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
    /// [`Error::Memory`] if the system does not provide the memory.
    ///
    /// # Panics
    /// If the size of `count` elements exceeds the address space.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Registered<T>> {
        Registered::new(self.registry, count)
    }

    /// Leaves the reduction of all buffers on every rank, bitwise identical.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if ranks make different calls; [`Error::Timeout`], [`Error::Left`] and [`Error::Aborted`] if another
    /// rank does not arrive; [`Error::Failed`] if this rank cannot continue. After any of these the communicator [is
    /// lost](Error::is_fatal). [`Error::Unsupported`] refuses the call if the method chosen by name is not available.
    pub fn all_reduce<T: Element>(&mut self, buffer: &mut [T], op: ReduceOp) -> Result<Ran> {
        self.run(Operation::AllReduce, Some(op), buffer)
    }

    /// Leaves on every rank its own part of the reduction of all buffers, and returns that part; the rest of the buffer is
    /// undefined.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter<'a, T: Element>(
        &mut self,
        buffer: &'a mut [T],
        op: ReduceOp,
    ) -> Result<&'a mut [T]> {
        self.run(Operation::ReduceScatter, Some(op), buffer)?;
        let own = self.own_values(buffer.len());
        Ok(&mut buffer[own])
    }

    /// Every rank contributes [its own part](Communicator::own_part) of the buffer and ends with all parts.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather<T: Element>(&mut self, buffer: &mut [T]) -> Result<Ran> {
        self.run(Operation::AllGather, None, buffer)
    }

    /// Copies the root's buffer to every rank.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If `root` is not a rank of this world.
    pub fn broadcast<T: Element>(&mut self, buffer: &mut [T], root: Rank) -> Result<Ran> {
        self.run(Operation::Broadcast { root }, None, buffer)
    }

    /// Leaves the reduction of all buffers on the root; the other buffers are undefined.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If `root` is not a rank of this world.
    pub fn reduce<T: Element>(&mut self, buffer: &mut [T], op: ReduceOp, root: Rank) -> Result<Ran> {
        self.run(Operation::Reduce { root }, Some(op), buffer)
    }

    /// Every rank contributes [its own part](Communicator::own_part) of the buffer, and the root ends with all parts.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If `root` is not a rank of this world.
    pub fn gather<T: Element>(&mut self, buffer: &mut [T], root: Rank) -> Result<Ran> {
        self.run(Operation::Gather { root }, None, buffer)
    }

    /// Leaves on every rank its own part of the root's buffer, and returns that part; except on the root, the rest of the buffer
    /// is undefined.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If `root` is not a rank of this world.
    pub fn scatter<'a, T: Element>(&mut self, buffer: &'a mut [T], root: Rank) -> Result<&'a mut [T]> {
        self.run(Operation::Scatter { root }, None, buffer)?;
        let own = self.own_values(buffer.len());
        Ok(&mut buffer[own])
    }

    /// Leaves on every rank the reduction of the buffers of all ranks up to and including itself: `MPI_Scan`.
    ///
    /// ```
    /// use unisono::ReduceOp;
    ///
    /// let ended = unisono::threads(3, |mut comm| -> unisono::Result<u32> {
    ///     let mut count = [comm.rank() as u32 + 1];
    ///     comm.scan(&mut count, ReduceOp::Sum)?;
    ///     Ok(count[0])
    /// });
    /// let sums: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    /// assert_eq!(sums, [1, 3, 6]);
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`Error::Unsupported`] for a mean.
    pub fn scan<T: Element>(&mut self, buffer: &mut [T], op: ReduceOp) -> Result<Ran> {
        self.run(Operation::Scan, Some(op), buffer)
    }

    /// Leaves on every rank the reduction of the buffers of all ranks before itself: `MPI_Exscan`. The buffer of rank 0 is undefined.
    ///
    /// # Errors
    /// As [`Communicator::scan`].
    pub fn exclusive_scan<T: Element>(&mut self, buffer: &mut [T], op: ReduceOp) -> Result<Ran> {
        self.run(Operation::ExclusiveScan, Some(op), buffer)
    }

    /// Exchanges one block with every rank: block `j` of rank `i` becomes block `i` of rank `j`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If the length of the buffer is not a multiple of the number of ranks.
    pub fn all_to_all<T: Element>(&mut self, buffer: &mut [T]) -> Result<Ran> {
        self.run(Operation::AllToAll, None, buffer)
    }

    /// Returns once all ranks have called it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn barrier(&mut self) -> Result<()> {
        self.collective(OF_BARRIER)?.run(&Call::barrier(), &mut []).map(drop)
    }

    /// Declares that this rank cannot continue. Ranks that are threads fail at once; under MPI the job ends when the
    /// communicator is dropped. Later calls fail with [`Error::Aborted`].
    pub fn fail(&mut self, cause: &str) {
        self.end_calls_in_flight(self.rank, cause);
        drop(self.engine_owner.engine().fail(cause));
    }

    /// Informs all ranks of a failure that rank `first` has caused, so that calls in flight end: the engine is available after them.
    fn end_calls_in_flight(&self, first: Rank, cause: &str) {
        if self.engine_owner.here().is_none() && self.status.failure().is_none() {
            self.status.give_up(first, cause);
        }
    }

    /// Returns the range of this rank's part in a buffer of `count` values. An element may consist of several values.
    fn own_values(&self, count: usize) -> Range<usize> {
        let width = usize::from(self.per_call.width());
        scaled(self.own_part(count / width), width)
    }

    /// Makes a collective on a buffer, as [`Communicator::all_reduce`]; public for `unisono-bindings`.
    #[doc(hidden)]
    pub fn run<T: Element>(
        &mut self,
        operation: Operation,
        op: Option<ReduceOp>,
        buffer: &mut [T],
    ) -> Result<Ran> {
        let call = self.checked::<T>(operation, op, buffer.len());
        self.check_choice_of_call()?;
        let Self { engine_owner, choice, per_call, .. } = self;
        let choice = per_call.choice_or(choice).on_host(operation);
        engine_owner.engine().run(choice, &per_call.options, &call, bytemuck::cast_slice_mut(buffer))
    }

    /// Returns the call on a buffer of `count` elements, its arguments checked.
    #[inline]
    fn checked<T: Element>(&self, operation: Operation, op: Option<ReduceOp>, count: usize) -> Call {
        let ranks = self.ranks();
        let call = Call::new(operation, op, T::DTYPE, count).in_elements_of(self.per_call.width());
        if let Some(root) = operation.root() {
            assert!(root < ranks, "root {root} is not in a world of {ranks} ranks");
        }
        if operation == Operation::AllToAll {
            let Call { count, .. } = call;
            assert!(count.is_multiple_of(ranks), "{count} elements are not {ranks} blocks of equal size");
        }
        if let Some(parts) = &self.per_call.options.parts {
            assert!(
                operation.has_parts(),
                "an operation without parts of ranks, `{operation}`, has no counts"
            );
            check_parts(call.count, parts);
        }
        call
    }
}

fn check_parts(count: usize, parts: &Partition) {
    let sum = parts.start(parts.chunk_count());
    assert_eq!(count, sum, "the buffer has {count} elements, and the parts of ranks have {sum}");
}
