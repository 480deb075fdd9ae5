//! MPI's own collectives, in place, with their types and reductions, and communicators of groups. Sections are those of the MPI 4.0 standard (§).

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;

use mpi::ffi;
use unisono_collectives::{Operation, Rank};

use super::{Comm, check, lock};
use crate::call::Call;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;

/// The tag of group creation, which no message on the communicator uses.
const GROUP_TAG: c_int = 3;

impl Comm {
    /// Returns whether this is an intercommunicator, whose gathers return the values of another group: `MPI_Comm_test_inter` (§7.6.1).
    pub(in super::super) fn has_two_groups(self) -> Result<bool> {
        let _lock = lock();
        let mut is_inter = 0;
        // SAFETY: the handle is valid, and the number lives to the end of the call.
        check(unsafe { call!(MPI_Comm_test_inter(self.0, &raw mut is_inter)) })?;
        Ok(is_inter != 0)
    }

    /// Returns a communicator of these ranks: `MPI_Group_incl` (§7.3.2) and `MPI_Comm_create_group` (§7.4.2). Only its members call it. It
    /// blocks until all have.
    pub(in super::super) fn of_group(self, members: &[Rank]) -> Result<Self> {
        let _lock = lock();
        let members: Vec<_> = members.iter().map(|&rank| rank as c_int).collect();
        let (mut all, mut some, mut part) = (MaybeUninit::uninit(), MaybeUninit::uninit(), self);
        // SAFETY: the handle is valid, every call writes its result if it succeeds, and the groups are not used afterwards.
        unsafe {
            check(call!(MPI_Comm_group(self.0, all.as_mut_ptr())))?;
            let (count, list) = (members.len() as c_int, members.as_ptr());
            check(call!(MPI_Group_incl(all.assume_init(), count, list, some.as_mut_ptr())))?;
            check(call!(MPI_Comm_create_group(self.0, some.assume_init(), GROUP_TAG, &raw mut part.0)))?;
            check(call!(MPI_Group_free(some.as_mut_ptr())))?;
            check(call!(MPI_Group_free(all.as_mut_ptr())))?;
        }
        part.return_errors()
    }

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

/// Reduces `arrived` into `held` by MPI's reduction, without communication: `MPI_Reduce_local` (§6.9.7).
pub(in super::super) fn reduce_local(
    held: &mut [u8],
    arrived: &[u8],
    dtype: DType,
    op: ReduceOp,
) -> Result<()> {
    assert_eq!(held.len(), arrived.len(), "two arrays of the same size");
    let (kind, count) = (datatype(dtype, Some(op))?, int(held.len() / dtype.size_bytes())?);
    // SAFETY: both arrays hold `count` elements of this type, and neither is kept.
    check(unsafe {
        let (arrived, held) = (arrived.as_ptr().cast(), held.as_mut_ptr().cast());
        call!(MPI_Reduce_local(arrived, held, count, kind, reduction(op)))
    })
}

fn int(count: usize) -> Result<c_int> {
    c_int::try_from(count).map_err(|_| {
        Error::Unsupported(format!(
            "MPI's own collectives take at most {} elements a call; choose another algorithm",
            c_int::MAX
        ))
    })
}

fn reduction(op: ReduceOp) -> ffi::MPI_Op {
    // SAFETY: constants of the library.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => ffi::RSMPI_SUM,
            ReduceOp::Min => ffi::RSMPI_MIN,
            ReduceOp::Max => ffi::RSMPI_MAX,
            ReduceOp::Product => ffi::RSMPI_PROD,
            ReduceOp::BitAnd => ffi::RSMPI_BAND,
            ReduceOp::BitOr => ffi::RSMPI_BOR,
            ReduceOp::BitXor => ffi::RSMPI_BXOR,
            ReduceOp::LogicalAnd => ffi::RSMPI_LAND,
            ReduceOp::LogicalOr => ffi::RSMPI_LOR,
            ReduceOp::LogicalXor => ffi::RSMPI_LXOR,
            ReduceOp::Custom(custom) => unreachable!("a call of MPI's with {custom:?} is refused"),
        }
    }
}

/// Returns the MPI type of an element that is reduced by an operation, or only moved (§3.2.2). MPI has none for half precision.
fn datatype(dtype: DType, op: Option<ReduceOp>) -> Result<ffi::MPI_Datatype> {
    // SAFETY: constants of the library.
    unsafe {
        Ok(match (dtype, op) {
            (DType::F32, _) => ffi::RSMPI_FLOAT,
            (DType::F64, _) => ffi::RSMPI_DOUBLE,
            (DType::I32, _) => ffi::RSMPI_INT32_T,
            (DType::I64, _) => ffi::RSMPI_INT64_T,
            (DType::U8, _) => ffi::RSMPI_UINT8_T,
            (DType::U32, _) => ffi::RSMPI_UINT32_T,
            (DType::U64, _) => ffi::RSMPI_UINT64_T,
            (DType::F16 | DType::BF16, None) => ffi::RSMPI_UINT16_T,
            (DType::F16 | DType::BF16, Some(op)) => {
                let why = format!("have no {op} of {dtype}; choose another algorithm");
                return Err(Error::Unsupported(format!("MPI's own collectives {why}")));
            }
        })
    }
}

unsafe extern "C" {
    /// The value of `MPI_IN_PLACE` (`header.c`).
    safe fn unisono_mpi_in_place() -> *const c_void;
}
