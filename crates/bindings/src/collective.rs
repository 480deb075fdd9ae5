//! Collectives as values.

use std::num::NonZero;
use std::ops::DerefMut;

use unisono::{Buffer, Communicator, DType, Element, Operation, Planned, ReduceOp, Request, Result};

use super::arguments;

/// The error of counts of ranks for a call without parts.
pub const NO_PARTS: &str =
    "counts of ranks: only reduce-scatter, all-gather, gather and scatter have parts; set none";

/// A collective with its arguments except the array. All collectives work in place.
#[derive(Debug, Clone, Copy)]
pub struct Collective {
    /// The operation, with a root that is a rank of the communicator.
    pub operation: Operation,
    /// The reduction, exactly if the operation reduces.
    pub op: Option<ReduceOp>,
}

impl Collective {
    /// Returns the collective whose operation has this name. `op` is set exactly if it reduces, and `root` exactly if it has one.
    ///
    /// # Errors
    /// If there is no such operation, with the text of the error.
    pub fn named(name: &str, op: Option<ReduceOp>, root: Option<usize>) -> std::result::Result<Self, String> {
        let letter = |letter| if letter == b'-' { b'_' } else { letter };
        let is_it = |operation: &Operation| operation.name().bytes().map(letter).eq(name.bytes());
        let found = Operation::all(root.unwrap_or(0)).into_iter().find(is_it);
        let operation = found.ok_or_else(|| format!("no operation is called {name:?}"))?;
        for (is_needed, is_given, what) in [
            (operation.reduces(), op.is_some(), "reduction"),
            (operation.root().is_some(), root.is_some(), "root"),
        ] {
            if is_needed != is_given {
                let has = if is_needed { "needs a" } else { "has no" };
                return Err(format!("{name} {has} {what}"));
            }
        }
        Ok(Self { operation, op })
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
        if self.operation == Operation::AllToAll && !count.is_multiple_of(ranks) {
            return Err(format!("an all-to-all of {count} elements, which are not {ranks} equal blocks"));
        }
        let Some(counts) = counts else { return Ok(()) };
        if !self.operation.has_parts() {
            return Err(NO_PARTS.into());
        }
        arguments::counts(counts, (count, ranks), "array")
    }

    /// Returns whether it accepts elements of types that the library does not have: for moves, and for custom reductions.
    pub fn takes_any_type(self) -> bool {
        matches!(self.op, None | Some(ReduceOp::Custom(_)))
    }

    /// Returns the size of the elements of a custom reduction, if they are not values of one type.
    pub fn element_bytes(self) -> Option<NonZero<u16>> {
        match self.op {
            Some(ReduceOp::Custom(custom)) => custom.element_bytes(),
            _ => None,
        }
    }

    /// Makes the call.
    ///
    /// # Errors
    /// As the call.
    pub fn blocking<T: Element>(self, comm: &mut Communicator, values: &mut [T]) -> Result<()> {
        self.in_elements::<T, _>(comm, |comm| comm.run(self.operation, self.op, values).map(drop))
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

    /// Starts the non-blocking call.
    ///
    /// # Errors
    /// As the call.
    pub fn non_blocking<B: Buffer>(self, comm: &mut Communicator, values: B) -> Result<Request<B>> {
        self.in_elements::<B::Element, _>(comm, |comm| comm.call_async(self.operation, self.op, values))
    }

    /// Plans the call.
    ///
    /// # Errors
    /// As [`Communicator::plan`].
    pub fn plan<T: Element, B>(self, comm: &mut Communicator, values: B) -> Result<Planned<B>>
    where
        B: DerefMut<Target = [T]>,
    {
        self.in_elements::<T, _>(comm, |comm| comm.plan(self.operation, self.op, values))
    }
}
