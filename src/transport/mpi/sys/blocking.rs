//! MPI's own blocking collectives in the world, in place: a baseline. Sections are those of the MPI 4.0 standard (§).

use std::ffi::{c_int, c_void};
use std::ptr;

use mpi::ffi;
use unisono_collectives::partition::Partition;
use unisono_collectives::{Chunks, Operation};

use super::collectives::{datatype, int, moved, reduction, unisono_mpi_in_place};
use super::lock::lock;
use super::{Comm, check};
use crate::call::Call;
use crate::error::Result;

/// The arguments of a call in MPI's terms, on a buffer of this rank.
struct InPlace {
    comm: ffi::MPI_Comm,
    kind: ffi::MPI_Datatype,
    held: *mut c_void,
    count: c_int,
    /// The element count and displacement of each rank's part.
    counts: Vec<c_int>,
    starts: Vec<c_int>,
    /// The start and element count of this rank's part.
    part: *mut c_void,
    /// Separate memory for this rank's part of a result.
    separate: *mut c_void,
    own_count: c_int,
    /// Whether all parts have the same size, so that the variants without counts apply.
    is_even: bool,
    root: c_int,
    is_root: bool,
}

/// The name of an MPI function and its return code.
type Called = (&'static str, c_int);

impl Comm {
    /// Carries out a call with these parts of ranks. Blocks without a deadline, and keeps other threads of this process out of MPI meanwhile:
    /// groups on several threads must not overlap such calls. A non-blocking call would not measure the baseline.
    ///
    /// # Panics
    /// If the buffer does not hold the elements of the call.
    pub(in super::super) fn run(self, call: &Call, parts: &Partition, buffer: &mut [u8]) -> Result<()> {
        assert_eq!(buffer.len(), call.size_bytes(), "the buffer of {} {}", call.count, call.dtype);
        let _lock = lock();
        if buffer.is_empty() {
            // An empty slice may have address 1, which is Open MPI's `MPI_IN_PLACE` and is refused. The call is then a barrier: `MPI_Barrier`
            // (§6.3).
            // SAFETY: the handle is valid.
            return check("MPI_Barrier", unsafe { ffi::MPI_Barrier(self.0) });
        }
        let own = call.bytes_of(parts.elements(Chunks::one(self.rank()?)));
        let mut in_place = InPlace::new(self, call, parts, buffer)?;
        // In place, MPICH 4 copies between ranges of the buffer that overlap if parts have different sizes, and aborts.
        let is_separate = call.operation == Operation::ReduceScatter && !in_place.is_even;
        let mut separate = vec![0_u64; if is_separate { own.len().div_ceil(size_of::<u64>()) } else { 0 }];
        in_place.separate = separate.as_mut_ptr().cast();
        // SAFETY: the buffer is borrowed until MPI is done with it.
        let (name, code) = unsafe {
            match call.op {
                Some(op) => in_place.reduce(call.operation, reduction(op)),
                None => in_place.move_values(call.operation),
            }
        };
        check(name, code)?;
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
}

impl InPlace {
    fn new(comm: Comm, call: &Call, parts: &Partition, buffer: &mut [u8]) -> Result<Self> {
        let rank = comm.rank()?;
        let ranges = (0..comm.ranks()?).map(|rank| parts.elements(Chunks::one(rank)));
        let own = parts.elements(Chunks::one(rank));
        let root = call.operation.root().unwrap_or(0);
        Ok(Self {
            comm: comm.0,
            kind: call.op.map_or_else(|| Ok(moved(call.dtype)), |op| datatype(call.dtype, op))?,
            count: int(call.count)?,
            counts: ranges.clone().map(|part| int(part.len())).collect::<Result<_>>()?,
            starts: ranges.clone().map(|part| int(part.start)).collect::<Result<_>>()?,
            own_count: int(own.len())?,
            part: buffer[call.bytes_of(own.clone()).start..].as_mut_ptr().cast(),
            separate: ptr::null_mut(),
            held: buffer.as_mut_ptr().cast(),
            is_even: ranges.clone().all(|part| part.len() == own.len()),
            root: root as c_int,
            is_root: root == rank,
        })
    }

    /// Calls a reduction: `MPI_Reduce` (§6.9.1), `MPI_Allreduce` (§6.9.6), `MPI_Reduce_scatter_block` and `MPI_Reduce_scatter` (§6.10),
    /// `MPI_Scan` and `MPI_Exscan` (§6.11).
    ///
    /// # Safety
    /// The buffer must be valid, and not accessed by others, until this returns.
    unsafe fn reduce(&self, operation: Operation, op: ffi::MPI_Op) -> Called {
        let Self { comm, kind, held, separate, count, ref counts, own_count, is_even, root, is_root, .. } =
            *self;
        let in_place = unisono_mpi_in_place();
        // SAFETY: the buffer holds `count` elements of this type, which is the sum of `counts`. In place, it is both input and output. `separate`
        // holds the elements of this rank's part.
        unsafe {
            match operation {
                Operation::AllReduce => {
                    ("MPI_Allreduce", ffi::MPI_Allreduce(in_place, held, count, kind, op, comm))
                }
                Operation::ReduceScatter if is_even => {
                    let code = ffi::MPI_Reduce_scatter_block(in_place, held, own_count, kind, op, comm);
                    ("MPI_Reduce_scatter_block", code)
                }
                Operation::ReduceScatter => {
                    let code = ffi::MPI_Reduce_scatter(held, separate, counts.as_ptr(), kind, op, comm);
                    ("MPI_Reduce_scatter", code)
                }
                Operation::Reduce { .. } => {
                    let sent = if is_root { in_place } else { held.cast_const() };
                    ("MPI_Reduce", ffi::MPI_Reduce(sent, held, count, kind, op, root, comm))
                }
                Operation::Scan => ("MPI_Scan", ffi::MPI_Scan(in_place, held, count, kind, op, comm)),
                Operation::ExclusiveScan => {
                    ("MPI_Exscan", ffi::MPI_Exscan(in_place, held, count, kind, op, comm))
                }
                _ => panic!("{operation} does not reduce"),
            }
        }
    }

    /// Calls a broadcast (§6.4), gather (§6.5), scatter (§6.6), all-gather (§6.7) or all-to-all (§6.8).
    ///
    /// # Safety
    /// As for `reduce`.
    unsafe fn move_values(&self, operation: Operation) -> Called {
        let Self { comm, kind, held, count, part, own_count, is_even, root, is_root, .. } = *self;
        let (counts, starts) = (self.counts.as_ptr(), self.starts.as_ptr());
        let in_place = unisono_mpi_in_place();
        let sent = if is_root { in_place } else { part.cast_const() };
        // The receive buffer is not const in MPI's signatures; `MPI_IN_PLACE` is never written to.
        let into = if is_root { in_place.cast_mut() } else { part };
        // SAFETY: the buffer holds `count` elements of this type, and the parts of all ranks are inside of it. In place, it is both input and
        // output. Arguments that are significant only at the root may have any value on other ranks.
        unsafe {
            match operation {
                Operation::AllGather if is_even => {
                    let code = ffi::MPI_Allgather(in_place, 0, kind, held, own_count, kind, comm);
                    ("MPI_Allgather", code)
                }
                Operation::AllGather => {
                    let code = ffi::MPI_Allgatherv(in_place, 0, kind, held, counts, starts, kind, comm);
                    ("MPI_Allgatherv", code)
                }
                Operation::Broadcast { .. } => ("MPI_Bcast", ffi::MPI_Bcast(held, count, kind, root, comm)),
                Operation::Gather { .. } if is_even => {
                    let code = ffi::MPI_Gather(sent, own_count, kind, held, own_count, kind, root, comm);
                    ("MPI_Gather", code)
                }
                Operation::Gather { .. } => {
                    let code =
                        ffi::MPI_Gatherv(sent, own_count, kind, held, counts, starts, kind, root, comm);
                    ("MPI_Gatherv", code)
                }
                Operation::Scatter { .. } if is_even => {
                    let code = ffi::MPI_Scatter(held, own_count, kind, into, own_count, kind, root, comm);
                    ("MPI_Scatter", code)
                }
                Operation::Scatter { .. } => {
                    let code =
                        ffi::MPI_Scatterv(held, counts, starts, kind, into, own_count, kind, root, comm);
                    ("MPI_Scatterv", code)
                }
                Operation::AllToAll => {
                    assert!(is_even, "{count} elements are not blocks of equal size");
                    ("MPI_Alltoall", ffi::MPI_Alltoall(in_place, 0, kind, held, own_count, kind, comm))
                }
                _ => panic!("{operation} reduces"),
            }
        }
    }
}
