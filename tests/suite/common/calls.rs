//! A collective call as a value: drawn at random, made on a communicator, and checked against the expected result.

use std::ops::Range;

use unisono::{Buffer, CallBuilder, Choice, Communicator, DType, Element, Operation, ReduceOp, Request};

use super::memory::Memory;
use super::{Exact, assert_reduced, inputs};

/// A call, as described to the ranks of a world.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    pub operation: Operation,
    /// A choice that carries out the operation itself.
    pub choice: Choice,
    pub dtype: DType,
    pub op: ReduceOp,
    pub count: usize,
    /// Empty for no label.
    pub label: &'static str,
}

/// The values of one rank in a call.
#[derive(Debug, Clone, Copy)]
pub struct Own {
    pub memory: Memory,
    pub in_flight: bool,
}

/// The relation between the calls of ranks, which determines the expected result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    Agree,
    /// The calls differ. A rank may complete its part before it can detect this. Results that depend on all ranks must not exist.
    Disagree,
}

impl Made {
    pub fn barrier() -> Self {
        let choice = Choice::from(unisono::Algorithm::RecursiveDoubling);
        Self {
            operation: Operation::AllReduce,
            choice,
            dtype: DType::U8,
            op: ReduceOp::Max,
            count: 0,
            label: "",
        }
    }

    pub fn reduces(&self) -> bool {
        self.operation.reduces()
    }

    /// Describes the call as the library's messages do.
    pub fn describe(&self, sequence: usize) -> String {
        let Self { operation, choice, dtype, op, count, label } = self;
        let label = if label.is_empty() { String::new() } else { format!("{label:?} ") };
        if *self == (Self { label: self.label, ..Self::barrier() }) {
            return format!("barrier #{sequence} {label}").trim_end().to_owned();
        }
        let op = if self.reduces() { format!(", {op}") } else { String::new() };
        let root = operation.root().map_or(String::new(), |root| format!(", root {root}"));
        format!("{} #{sequence} {label}of {count} {dtype}{op}{root}, by {choice}", operation.name())
    }

    /// Makes the call, with elements determined by `number`.
    ///
    /// # Panics
    /// If the result is wrong.
    pub fn make(
        &self,
        comm: &mut Communicator,
        own: Own,
        number: usize,
        ranks: Ranks,
    ) -> unisono::Result<()> {
        use half::{bf16, f16};
        match self.dtype {
            DType::F32 => self.make_with::<f32>(comm, own, number, ranks),
            DType::F64 => self.make_with::<f64>(comm, own, number, ranks),
            DType::F16 => self.make_with::<f16>(comm, own, number, ranks),
            DType::BF16 => self.make_with::<bf16>(comm, own, number, ranks),
            DType::I32 => self.make_with::<i32>(comm, own, number, ranks),
            DType::I64 => self.make_with::<i64>(comm, own, number, ranks),
            DType::U8 => self.make_with::<u8>(comm, own, number, ranks),
            DType::U32 => self.make_with::<u32>(comm, own, number, ranks),
            DType::U64 => self.make_with::<u64>(comm, own, number, ranks),
        }
    }

    fn make_with<T: Exact>(
        &self,
        comm: &mut Communicator,
        Own { memory, in_flight }: Own,
        number: usize,
        ranks: Ranks,
    ) -> unisono::Result<()> {
        comm.set_choice(self.choice.clone())?;
        let op = self.op;
        let comm = &mut self.named(comm);
        let mut array = memory.array(comm, inputs::<T>(op, comm.rank(), number, self.count));
        if in_flight {
            array = self.begin(comm, array)?.wait()?;
        } else {
            self.block(comm, &mut array)?;
        }
        self.check(comm, &array, number, ranks);
        Ok(())
    }

    /// Returns the communicator, for a call with this one's label.
    pub fn named<'comm>(&self, comm: &'comm mut Communicator) -> CallBuilder<'comm> {
        let call = comm.call();
        if self.label.is_empty() { call } else { call.label(self.label) }
    }

    /// Makes the blocking call, with its choice.
    pub fn block<T: Element>(&self, comm: &mut Communicator, array: &mut [T]) -> unisono::Result<()> {
        let op = self.op;
        match self.operation {
            Operation::AllReduce => comm.all_reduce(array, op).map(drop),
            Operation::ReduceScatter => comm.reduce_scatter(array, op).map(drop),
            Operation::AllGather => comm.all_gather(array).map(drop),
            Operation::Broadcast { root } => comm.broadcast(array, root).map(drop),
            Operation::Reduce { root } => comm.reduce(array, op, root).map(drop),
            Operation::Gather { root } => comm.gather(array, root).map(drop),
            Operation::Scatter { root } => comm.scatter(array, root).map(drop),
            Operation::AllToAll => comm.all_to_all(array).map(drop),
            Operation::Scan => comm.scan(array, op).map(drop),
            Operation::ExclusiveScan => comm.exclusive_scan(array, op).map(drop),
        }
    }

    /// Starts the same call without waiting for it.
    pub fn begin<B: Buffer>(&self, comm: &mut Communicator, array: B) -> unisono::Result<Request<B>> {
        let op = self.op;
        match self.operation {
            Operation::AllReduce => comm.all_reduce_async(array, op),
            Operation::ReduceScatter => comm.reduce_scatter_async(array, op),
            Operation::AllGather => comm.all_gather_async(array),
            Operation::Broadcast { root } => comm.broadcast_async(array, root),
            Operation::Reduce { root } => comm.reduce_async(array, op, root),
            Operation::Gather { root } => comm.gather_async(array, root),
            Operation::Scatter { root } => comm.scatter_async(array, root),
            Operation::AllToAll => comm.all_to_all_async(array),
            Operation::Scan => comm.scan_async(array, op),
            Operation::ExclusiveScan => comm.exclusive_scan_async(array, op),
        }
    }

    /// Returns the elements that are defined on a rank when the call is done.
    pub fn defined_on(&self, comm: &Communicator) -> Range<usize> {
        match self.operation {
            Operation::ReduceScatter | Operation::Scatter { .. } => comm.own_part(self.count),
            Operation::Reduce { root } | Operation::Gather { root } if root != comm.rank() => 0..0,
            Operation::ExclusiveScan if comm.rank() == 0 => 0..0,
            _ => 0..self.count,
        }
    }

    /// Returns whether this rank's result depends on every rank.
    pub fn needs_all(&self, rank: usize) -> bool {
        match self.operation {
            Operation::Broadcast { .. }
            | Operation::Scatter { .. }
            | Operation::Scan
            | Operation::ExclusiveScan => false,
            Operation::Reduce { root } | Operation::Gather { root } => rank == root,
            _ => true,
        }
    }

    /// Checks this rank's result against the expected one.
    ///
    /// # Panics
    /// If it is wrong.
    pub fn check<T: Exact>(&self, comm: &Communicator, result: &[T], number: usize, agree: Ranks) {
        let (rank, ranks, op, count) = (comm.rank(), comm.ranks(), self.op, self.count);
        let what = format!("rank {rank} of {ranks}, {} over {}", self.describe(0), comm.transport());
        assert!(agree == Ranks::Agree || !self.needs_all(rank), "a result of mismatched calls: {what}");
        let own = comm.own_part(count);
        let of = |from: usize, range: Range<usize>| inputs::<T>(op, from, number + range.start, range.len());
        match self.operation {
            Operation::AllReduce => assert_reduced(result, op, ranks, number, &what),
            Operation::Reduce { root } if root == rank => assert_reduced(result, op, ranks, number, &what),
            Operation::ReduceScatter => {
                assert_reduced(&result[own.clone()], op, ranks, number + own.start, &what);
            }
            Operation::Broadcast { root } => assert!(result == of(root, 0..count), "{what}"),
            Operation::Scatter { root } => assert!(result[own.clone()] == of(root, own), "{what}"),
            Operation::Gather { root } if root != rank => {}
            Operation::AllGather | Operation::Gather { .. } => {
                let part = |from: usize| of(from, super::part(count, ranks, from));
                assert!(result == (0..ranks).flat_map(part).collect::<Vec<_>>(), "{what}");
            }
            Operation::AllToAll => {
                let block = |from: usize| of(from, own.clone());
                assert!(result == (0..ranks).flat_map(block).collect::<Vec<_>>(), "{what}");
            }
            Operation::Scan => assert_reduced(result, op, rank + 1, number, &what),
            Operation::ExclusiveScan if rank > 0 => assert_reduced(result, op, rank, number, &what),
            Operation::Reduce { .. } | Operation::ExclusiveScan => {}
        }
    }
}
