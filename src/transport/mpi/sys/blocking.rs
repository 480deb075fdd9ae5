//! MPI's own collectives, in place. Sections are those of the MPI 4.0 standard (§).

use std::ffi::{c_int, c_void};
use std::ops::Range;

use mpi::ffi;
use unisono_collectives::Operation;

use super::collectives::{datatype, int, reduction, unisono_mpi_in_place};
use super::{Comm, check, lock};
use crate::call::Call;
use crate::error::Result;
use crate::kernels::ReduceOp;

impl Comm {
    /// Carries out a call with these elements of each rank, if the operation has parts. Blocks without a deadline, and keeps other threads of this
    /// process out of MPI meanwhile: groups on several threads must not overlap such calls. A non-blocking call would not measure the baseline.
    ///
    /// # Panics
    /// If the buffer does not hold the elements of the call, or a part is not inside of it.
    pub(in super::super) fn run(self, call: &Call, parts: &[Range<usize>], buffer: &mut [u8]) -> Result<()> {
        assert_eq!(buffer.len(), call.size_bytes(), "the buffer of {} {}", call.count, call.dtype);
        let _lock = lock();
        if buffer.is_empty() {
            // An empty slice may have address 1, which is Open MPI's `MPI_IN_PLACE` and is refused. The call is then a barrier: `MPI_Barrier`
            // (§6.3).
            // SAFETY: the handle is valid.
            return check(unsafe { call!(MPI_Barrier(self.0)) });
        }
        let rank = self.rank()?;
        assert!(parts.iter().all(|part| part.end <= call.count), "the parts are inside of the buffer");
        let own_part = parts.get(rank).cloned().unwrap_or(0..0);
        let is_even = parts.iter().all(|part| part.len() == own_part.len());
        let own = call.bytes_of(own_part);
        // In place, MPICH 4 copies between ranges of the buffer that overlap if parts have different sizes, and aborts.
        let is_separate = call.operation == Operation::ReduceScatter && !is_even;
        let mut separate = vec![0_u64; if is_separate { own.len().div_ceil(size_of::<u64>()) } else { 0 }];
        // SAFETY: the buffer holds the elements of the call and all parts, as checked above, and is borrowed until MPI is done with it. `separate`
        // holds this rank's part, if parts have different sizes.
        unsafe {
            self.in_place(call, (rank, parts), buffer.as_mut_ptr().cast(), separate.as_mut_ptr().cast())
        }?;
        match call.operation {
            Operation::ReduceScatter if is_separate => {
                let own_bytes = own.len();
                buffer[own].copy_from_slice(&bytemuck::cast_slice(&separate)[..own_bytes]);
            }
            // In place, MPI leaves a rank's part at the beginning of the buffer (§6.10).
            Operation::ReduceScatter => buffer.copy_within(..own.len(), own.start),
            _ => {}
        }
        Ok(())
    }

    /// Calls a reduction: `MPI_Reduce` (§6.9.1), `MPI_Allreduce` (§6.9.6), `MPI_Reduce_scatter_block` and `MPI_Reduce_scatter` (§6.10),
    /// `MPI_Scan` and `MPI_Exscan` (§6.11); or a broadcast (§6.4), gather (§6.5), scatter (§6.6), all-gather (§6.7) or all-to-all (§6.8). If
    /// all parts have one size, it calls the variant without counts.
    ///
    /// # Safety
    /// `held` must point to the elements of the call, and the parts must be inside of it. `separate` must have space for this rank's part of a
    /// reduce-scatter of parts of different sizes. No other code may access either until this returns.
    unsafe fn in_place(
        self,
        call: &Call,
        (rank, parts): (usize, &[Range<usize>]),
        held: *mut c_void,
        separate: *mut c_void,
    ) -> Result<()> {
        let own_part = parts.get(rank).cloned().unwrap_or(0..0);
        let ints = |of: fn(&Range<usize>) -> usize| {
            parts.iter().map(|part| int(of(part))).collect::<Result<Vec<_>>>()
        };
        let (all_counts, all_starts) = (ints(ExactSizeIterator::len)?, ints(|part| part.start)?);
        let (counts, starts) = (all_counts.as_ptr(), all_starts.as_ptr());
        let (count, own_count, comm) = (int(call.count)?, int(own_part.len())?, self.0);
        let is_even = all_counts.iter().all(|&count| count == own_count);
        let kind = datatype(call.dtype, call.op)?;
        // Only reductions use it.
        let op = reduction(call.op.unwrap_or(ReduceOp::Sum));
        let part = held.wrapping_byte_add(call.bytes_of(own_part).start);
        let root = call.operation.root().unwrap_or(0);
        let (is_root, root) = (root == rank, root as c_int);
        let in_place = unisono_mpi_in_place();
        // The receive buffer is not const in MPI's signatures; `MPI_IN_PLACE` is never written to.
        let (sent, into) = if is_root { (in_place, in_place.cast_mut()) } else { (part.cast_const(), part) };
        let whole = if is_root { in_place } else { held.cast_const() };
        // SAFETY: `held` has `count` elements of this type, the sum of `counts` if there are parts, which are all inside of it. In place, it is both
        // input and output. `separate` holds this rank's part. Arguments that are significant only at the root may have any value on other ranks.
        check(unsafe {
            match call.operation {
                Operation::AllReduce => call!(MPI_Allreduce(in_place, held, count, kind, op, comm)),
                Operation::ReduceScatter if is_even => {
                    call!(MPI_Reduce_scatter_block(in_place, held, own_count, kind, op, comm))
                }
                Operation::ReduceScatter => call!(MPI_Reduce_scatter(held, separate, counts, kind, op, comm)),
                Operation::Reduce { .. } => call!(MPI_Reduce(whole, held, count, kind, op, root, comm)),
                Operation::Scan => call!(MPI_Scan(in_place, held, count, kind, op, comm)),
                Operation::ExclusiveScan => call!(MPI_Exscan(in_place, held, count, kind, op, comm)),
                Operation::AllGather if is_even => {
                    call!(MPI_Allgather(in_place, 0, kind, held, own_count, kind, comm))
                }
                Operation::AllGather => {
                    call!(MPI_Allgatherv(in_place, 0, kind, held, counts, starts, kind, comm))
                }
                Operation::Broadcast { .. } => call!(MPI_Bcast(held, count, kind, root, comm)),
                Operation::Gather { .. } if is_even => {
                    call!(MPI_Gather(sent, own_count, kind, held, own_count, kind, root, comm))
                }
                Operation::Gather { .. } => {
                    call!(MPI_Gatherv(sent, own_count, kind, held, counts, starts, kind, root, comm))
                }
                Operation::Scatter { .. } if is_even => {
                    call!(MPI_Scatter(held, own_count, kind, into, own_count, kind, root, comm))
                }
                Operation::Scatter { .. } => {
                    call!(MPI_Scatterv(held, counts, starts, kind, into, own_count, kind, root, comm))
                }
                Operation::AllToAll => {
                    assert!(is_even, "{count} elements are not blocks of equal size");
                    call!(MPI_Alltoall(in_place, 0, kind, held, own_count, kind, comm))
                }
            }
        })
    }
}
