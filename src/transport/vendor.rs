//! A vendor's own collectives on the host, which are MPI's.

use std::ops::Range;

use unisono_collectives::partition::Partition;
use unisono_collectives::{Group, Operation};

#[cfg(feature = "mpi")]
use super::Waiting;
use super::{Deadlines, Fabric, Failure};
use crate::call::Call;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::ReduceOp;

/// A phase that a vendor carries out on a buffer of this rank, among the ranks of a group.
#[derive(Debug)]
#[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "there is no vendor"))]
pub(crate) struct VendorPhase<'a> {
    pub(crate) group: &'a Group,
    pub(crate) operation: Operation,
    /// The bytes of each position's part, if the operation has parts.
    pub(crate) parts: Vec<Range<usize>>,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
}

const CHOSEN: &str = "a vendor is chosen only if it is available";

impl Fabric {
    /// Runs a phase of a plan as a vendor's collective. The ranks of the group have verified that they make the same call.
    pub(crate) fn vendor_phase(
        &mut self,
        phase: &VendorPhase<'_>,
        held: &mut [u8],
        deadlines: &Deadlines,
    ) -> std::result::Result<(), Failure> {
        self.delay();
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &mut self.mpi {
            let waiting = Waiting::new(self.spins, deadlines, &self.status);
            return mpi.in_group(phase, held, (&self.status, waiting));
        }
        let _ = (phase, held, deadlines);
        unreachable!("{CHOSEN}")
    }

    /// Runs a whole call as a vendor's collective, in place, with these parts of ranks. A mean is only summed. It has no deadline.
    pub(crate) fn vendor_call(&mut self, call: &Call, parts: &Partition, buffer: &mut [u8]) -> Result<()> {
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &mut self.mpi {
            return mpi.vendor(call, parts, buffer);
        }
        let _ = (call, parts, buffer);
        unreachable!("{CHOSEN}")
    }

    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), on all ranks, if the vendor reduces this type differently.
    pub(crate) fn check_vendor(&self, dtype: DType, op: ReduceOp) -> Result<()> {
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &self.mpi {
            return mpi.reductions.check(dtype, op);
        }
        let _ = (dtype, op);
        Ok(())
    }
}
