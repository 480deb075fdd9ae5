//! Scans: reductions of the ranks up to each rank.

use std::ops::DerefMut;

use unisono_collectives::Operation;

use super::Communicator;
use crate::call::Ran;
use crate::dtype::Element;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::kernels::ReduceOp;
use crate::request::Request;

impl Communicator {
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

    /// Starts the non-blocking form of [`Communicator::scan`]; it takes a buffer as
    /// [`Communicator::all_reduce_async`] does.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn scan_async<T: Element, B>(&mut self, buffer: B, op: ReduceOp) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.call_async(Operation::Scan, Some(op), buffer)
    }

    /// Starts the non-blocking form of [`Communicator::exclusive_scan`]; it takes a buffer as
    /// [`Communicator::all_reduce_async`] does.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn exclusive_scan_async<T: Element, B>(&mut self, buffer: B, op: ReduceOp) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.call_async(Operation::ExclusiveScan, Some(op), buffer)
    }
}
