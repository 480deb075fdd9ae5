//! Communicators of groups, and the types and reductions of MPI's own collectives. Sections are those of the MPI 4.0 standard (§).

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use mpi::ffi;
use unisono_collectives::Rank;

use super::{Comm, check, lock};
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

pub(super) fn int(count: usize) -> Result<c_int> {
    c_int::try_from(count).map_err(|_| {
        Error::Unsupported(format!(
            "MPI's own collectives take at most {} elements a call; choose another algorithm",
            c_int::MAX
        ))
    })
}

pub(super) fn reduction(op: ReduceOp) -> ffi::MPI_Op {
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
pub(super) fn datatype(dtype: DType, op: Option<ReduceOp>) -> Result<ffi::MPI_Datatype> {
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
    pub(super) safe fn unisono_mpi_in_place() -> *const c_void;
}
