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

#[cfg(not(feature = "mpi"))]
#[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "there is no vendor")]
impl Fabric {
    pub(crate) fn vendor_phase(
        &mut self,
        _: &VendorPhase<'_>,
        _: &mut [u8],
        _: &Deadlines,
    ) -> std::result::Result<(), Failure> {
        unreachable!("{CHOSEN}")
    }

    pub(crate) fn vendor_call(&mut self, _: &Call, _: &Partition, _: &mut [u8]) -> Result<()> {
        unreachable!("{CHOSEN}")
    }

    pub(crate) fn check_vendor(&self, _: DType, _: ReduceOp) -> Result<()> {
        Ok(())
    }
}

#[cfg(feature = "mpi")]
impl Fabric {
    /// Runs a phase of a plan as a vendor's collective. The ranks of the group have verified that they make the same call.
    pub(crate) fn vendor_phase(
        &mut self,
        phase: &VendorPhase<'_>,
        held: &mut [u8],
        deadlines: &Deadlines,
    ) -> std::result::Result<(), Failure> {
        self.delay();
        let waiting = Waiting::new(self.spins, deadlines, &self.status);
        self.mpi.as_mut().expect(CHOSEN).in_group(phase, held, (&self.status, waiting))
    }

    /// Runs a whole call as a vendor's collective, in place, with these parts of ranks. A mean is only summed. It has no deadline.
    ///
    /// # Errors
    /// [`Error::Mpi`](crate::Error::Mpi) if MPI fails.
    pub(crate) fn vendor_call(&mut self, call: &Call, parts: &Partition, buffer: &mut [u8]) -> Result<()> {
        self.mpi.as_mut().expect(CHOSEN).vendor(call, parts, buffer)
    }

    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), on all ranks, if the vendor reduces this type differently.
    pub(crate) fn check_vendor(&self, dtype: DType, op: ReduceOp) -> Result<()> {
        self.mpi.as_ref().map_or(Ok(()), |mpi| mpi.reductions.check(dtype, op))
    }
}
