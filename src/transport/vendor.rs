//! A vendor's own collectives on the host, which are MPI's.

use std::ops::Range;

use unisono_collectives::Group;

use super::Fabric;
use crate::call::Call;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::ReduceOp;

impl Fabric {
    /// Runs a call as a vendor's collective, in place, among all ranks or those of a group, with these elements of each of them if the operation has
    /// parts. A mean is only summed. It has no deadline, and does not check that the ranks make the same call.
    pub(crate) fn by_vendor(
        &mut self,
        group: Option<&Group>,
        call: &Call,
        parts: &[Range<usize>],
        buffer: &mut [u8],
    ) -> Result<()> {
        self.delay();
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &mut self.mpi {
            return mpi.vendor(group, call, parts, buffer);
        }
        let _ = (group, call, parts, buffer);
        unreachable!("a vendor is chosen only if it is available")
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
