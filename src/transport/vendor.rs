//! A vendor's own collectives on the host: MPI's.

#![cfg_attr(
    not(feature = "mpi"),
    allow(clippy::only_used_in_recursion, reason = "there is no MPI to be given it")
)]

use std::ops::Range;

use unisono_collectives::partition::Partition;
use unisono_collectives::{Group, VendorCall};

use super::{Deadlines, Failure, Transport};
use crate::call::Call;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::ReduceOp;

/// A phase that a vendor carries out on a buffer of this rank, among the ranks of a group.
#[derive(Debug)]
#[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "there is no vendor"))]
pub(crate) struct VendorPhase<'a> {
    pub(crate) group: &'a Group,
    pub(crate) call: &'a VendorCall,
    /// The bytes of each position's part, if the operation has parts.
    pub(crate) parts: Vec<Range<usize>>,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
}

impl Transport {
    /// Runs a phase of a plan as a vendor's collective. The ranks of the group have verified that they make the same call.
    pub(crate) fn vendor_phase(
        &mut self,
        phase: &VendorPhase<'_>,
        held: &mut [u8],
        deadlines: &Deadlines,
    ) -> std::result::Result<(), Failure> {
        match self {
            Self::Shared(_) | Self::Nodes(_) => {
                unreachable!("there is no vendor, as was seen when the algorithm was chosen")
            }
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.in_group(phase, held, deadlines),
            Self::Faulty(faulty) => {
                faulty.faults.delay();
                faulty.inner.vendor_phase(phase, held, deadlines)
            }
        }
    }

    /// Runs a whole call as a vendor's collective, in place, with these parts of ranks; a mean as its sum. It has no deadline.
    ///
    /// # Errors
    /// [`Error::Mpi`](crate::Error::Mpi) if MPI fails.
    pub(crate) fn vendor_call(&mut self, call: &Call, parts: &Partition, buffer: &mut [u8]) -> Result<()> {
        match self {
            Self::Shared(_) | Self::Nodes(_) => {
                unreachable!("there is no vendor, as was seen when it was chosen")
            }
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.vendor(call, parts, buffer),
            Self::Faulty(faulty) => faulty.inner.vendor_call(call, parts, buffer),
        }
    }

    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), on all ranks, if the vendor reduces this type differently.
    pub(crate) fn check_vendor(&self, dtype: DType, op: ReduceOp) -> Result<()> {
        match self {
            Self::Shared(_) | Self::Nodes(_) => Ok(()),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.check_reduction(dtype, op),
            Self::Faulty(faulty) => faulty.inner.check_vendor(dtype, op),
        }
    }
}
