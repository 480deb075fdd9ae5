//! Collectives as values.

use std::num::NonZero;
use std::ops::DerefMut;

use unisono::{Communicator, DType, Element, Planned, ReduceOp, Request, Result};

use super::arguments;

/// The error of counts of ranks for a call without parts.
pub const NO_PARTS: &str =
    "counts of ranks: only reduce-scatter, all-gather, gather and scatter have parts; set none";

/// A collective with its arguments except the array. All collectives work in place.
#[derive(Debug, Clone, Copy)]
pub enum Operation {
    /// [`Communicator::all_reduce`].
    AllReduce(ReduceOp),
    /// [`Communicator::reduce_scatter`].
    ReduceScatter(ReduceOp),
    /// [`Communicator::all_gather`].
    AllGather,
    /// [`Communicator::broadcast`] from a root.
    Broadcast(usize),
    /// [`Communicator::reduce`] to a root.
    Reduce(ReduceOp, usize),
    /// [`Communicator::gather`] to a root.
    Gather(usize),
    /// [`Communicator::scatter`] from a root.
    Scatter(usize),
    /// [`Communicator::all_to_all`].
    AllToAll,
    /// [`Communicator::scan`].
    Scan(ReduceOp),
    /// [`Communicator::exclusive_scan`].
    ExclusiveScan(ReduceOp),
}

impl Operation {
    /// Returns the operation with this name. `op` is set exactly if it reduces, and `root` exactly if it has one.
    ///
    /// # Errors
    /// If there is no such operation, with the text of the error.
    pub fn named(name: &str, op: Option<ReduceOp>, root: Option<usize>) -> std::result::Result<Self, String> {
        Ok(match (name, op, root) {
            ("all_reduce", Some(op), None) => Self::AllReduce(op),
            ("reduce_scatter", Some(op), None) => Self::ReduceScatter(op),
            ("all_gather", None, None) => Self::AllGather,
            ("broadcast", None, Some(root)) => Self::Broadcast(root),
            ("reduce", Some(op), Some(root)) => Self::Reduce(op, root),
            ("gather", None, Some(root)) => Self::Gather(root),
            ("scatter", None, Some(root)) => Self::Scatter(root),
            ("all_to_all", None, None) => Self::AllToAll,
            ("scan", Some(op), None) => Self::Scan(op),
            ("exclusive_scan", Some(op), None) => Self::ExclusiveScan(op),
            _ => return Err(format!("no operation is called {name:?}, with these arguments")),
        })
    }

    /// Checks the number of elements, and the counts of ranks if they are given.
    ///
    /// # Errors
    /// If an all-to-all cannot divide the elements among the ranks, or the counts do not add up to the number of elements, with the
    /// text of the error.
    pub fn check(
        self,
        count: usize,
        ranks: usize,
        counts: Option<&[usize]>,
    ) -> std::result::Result<(), String> {
        if matches!(self, Self::AllToAll) && !count.is_multiple_of(ranks) {
            return Err(format!("an all-to-all of {count} elements, which are not {ranks} equal blocks"));
        }
        let Some(counts) = counts else { return Ok(()) };
        let has_parts =
            matches!(self, Self::ReduceScatter(_) | Self::AllGather | Self::Gather(_) | Self::Scatter(_));
        if !has_parts {
            return Err(NO_PARTS.into());
        }
        arguments::counts(counts, (count, ranks), "array")
    }

    /// Returns whether it moves elements without reducing them.
    pub fn only_moves(self) -> bool {
        matches!(
            self,
            Self::AllGather | Self::Broadcast(_) | Self::Gather(_) | Self::Scatter(_) | Self::AllToAll
        )
    }

    /// Returns whether it accepts elements of types that the library does not have: for moves, and for custom reductions.
    pub fn takes_any_type(self) -> bool {
        self.only_moves() || matches!(self.parts().1, Some(ReduceOp::Custom(_)))
    }

    /// Returns the size of the elements of a custom reduction, if they are not values of one type.
    pub fn element_bytes(self) -> Option<NonZero<u16>> {
        match self.parts().1 {
            Some(ReduceOp::Custom(custom)) => custom.element_bytes(),
            _ => None,
        }
    }

    /// Makes the call.
    ///
    /// # Errors
    /// As the call.
    pub fn blocking<T: Element>(self, comm: &mut Communicator, values: &mut [T]) -> Result<()> {
        self.in_elements::<T, _>(comm, |comm| self.make_blocking(comm, values))
    }

    /// Makes a call whose elements have the size that the reduction needs.
    fn in_elements<T: Element, R>(
        self,
        comm: &mut Communicator,
        make: impl FnOnce(&mut Communicator) -> R,
    ) -> R {
        match self.element_bytes() {
            Some(size) if T::DTYPE == DType::U8 => make(&mut comm.call().element_bytes(size)),
            _ => make(comm),
        }
    }

    fn make_blocking<T: Element>(self, comm: &mut Communicator, values: &mut [T]) -> Result<()> {
        match self {
            Self::AllReduce(op) => comm.all_reduce(values, op).map(drop),
            Self::ReduceScatter(op) => comm.reduce_scatter(values, op).map(|_| ()),
            Self::AllGather => comm.all_gather(values).map(drop),
            Self::Broadcast(root) => comm.broadcast(values, root).map(drop),
            Self::Reduce(op, root) => comm.reduce(values, op, root).map(drop),
            Self::Gather(root) => comm.gather(values, root).map(drop),
            Self::Scatter(root) => comm.scatter(values, root).map(|_| ()),
            Self::AllToAll => comm.all_to_all(values).map(drop),
            Self::Scan(op) => comm.scan(values, op).map(drop),
            Self::ExclusiveScan(op) => comm.exclusive_scan(values, op).map(drop),
        }
    }

    /// Starts the non-blocking call.
    ///
    /// # Errors
    /// As the call.
    pub fn non_blocking<T: Element, B>(self, comm: &mut Communicator, values: B) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.in_elements::<T, _>(comm, |comm| self.start_non_blocking(comm, values))
    }

    fn start_non_blocking<T: Element, B>(self, comm: &mut Communicator, values: B) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        match self {
            Self::AllReduce(op) => comm.all_reduce_async(values, op),
            Self::ReduceScatter(op) => comm.reduce_scatter_async(values, op),
            Self::AllGather => comm.all_gather_async(values),
            Self::Broadcast(root) => comm.broadcast_async(values, root),
            Self::Reduce(op, root) => comm.reduce_async(values, op, root),
            Self::Gather(root) => comm.gather_async(values, root),
            Self::Scatter(root) => comm.scatter_async(values, root),
            Self::AllToAll => comm.all_to_all_async(values),
            Self::Scan(op) => comm.scan_async(values, op),
            Self::ExclusiveScan(op) => comm.exclusive_scan_async(values, op),
        }
    }

    /// Plans the call.
    ///
    /// # Errors
    /// As [`Communicator::plan`].
    pub fn plan<T: Element, B>(self, comm: &mut Communicator, values: B) -> Result<Planned<B>>
    where
        B: DerefMut<Target = [T]>,
    {
        let (operation, op) = self.parts();
        self.in_elements::<T, _>(comm, |comm| comm.plan(operation, op, values))
    }

    /// Returns the operation and its reduction, separately.
    pub(crate) fn parts(self) -> (unisono::Operation, Option<ReduceOp>) {
        match self {
            Self::AllReduce(op) => (unisono::Operation::AllReduce, Some(op)),
            Self::ReduceScatter(op) => (unisono::Operation::ReduceScatter, Some(op)),
            Self::AllGather => (unisono::Operation::AllGather, None),
            Self::Broadcast(root) => (unisono::Operation::Broadcast { root }, None),
            Self::Reduce(op, root) => (unisono::Operation::Reduce { root }, Some(op)),
            Self::Gather(root) => (unisono::Operation::Gather { root }, None),
            Self::Scatter(root) => (unisono::Operation::Scatter { root }, None),
            Self::AllToAll => (unisono::Operation::AllToAll, None),
            Self::Scan(op) => (unisono::Operation::Scan, Some(op)),
            Self::ExclusiveScan(op) => (unisono::Operation::ExclusiveScan, Some(op)),
        }
    }
}

/// A planned call, independent of its buffer.
pub trait Plan: Send {
    /// Starts the call.
    ///
    /// # Errors
    /// As [`Planned::start`].
    fn start(&mut self, comm: &mut Communicator) -> Result<()>;

    /// Waits until it is done.
    ///
    /// # Errors
    /// As [`Planned::wait`].
    fn wait(&mut self, comm: &mut Communicator) -> Result<()>;

    /// Returns whether it is started and not waited for.
    fn is_started(&self) -> bool;
}

impl<T: Element, B> Plan for Planned<B>
where
    B: DerefMut<Target = [T]> + Send + 'static,
{
    fn start(&mut self, comm: &mut Communicator) -> Result<()> {
        Planned::start(self, comm)
    }

    fn wait(&mut self, comm: &mut Communicator) -> Result<()> {
        Planned::wait(self, comm)
    }

    fn is_started(&self) -> bool {
        Planned::is_started(self)
    }
}
