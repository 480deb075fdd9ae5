//! MPI's own collectives: in the world, as a baseline, and for the phases of a plan.

use std::mem::ManuallyDrop;

use unisono_collectives::partition::Partition;
use unisono_collectives::{Group, VendorCall};

use super::World;
use super::ending::end_job;
use super::sys::{Comm, check_thread};
use crate::call::Call;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;
use crate::status::{StatusBoard, panicked};
use crate::transport::{Failure, VendorPhase, Waiting};

/// A communicator of the ranks of a group, created on first use.
#[derive(Debug)]
pub(super) struct GroupComm {
    group: Group,
    comm: Comm,
}

/// The buffer of a collective in progress. Unwinding frees memory that MPI still accesses, so it ends the job.
struct Lent<'a>(&'a StatusBoard);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up(self.0.rank(), &panicked());
            end_job(self.0);
        }
    }
}

impl World {
    /// Runs a call as MPI's own collective, in place, with these parts of ranks. A mean is only summed.
    pub(in crate::transport) fn vendor(
        &mut self,
        call: &Call,
        parts: &Partition,
        buffer: &mut [u8],
    ) -> Result<()> {
        check_thread(self.only_thread);
        self.comm.run(call, parts, buffer)
    }

    /// # Errors
    /// [`Error::Unsupported`], on all ranks, if MPI's own collectives reduce this type differently.
    pub(in crate::transport) fn check_reduction(&self, dtype: DType, op: ReduceOp) -> Result<()> {
        self.reductions.check(dtype, op)
    }

    /// Runs a phase of a plan. The ranks of the group have verified that they make the same call.
    pub(in crate::transport) fn in_group(
        &mut self,
        task: &VendorPhase<'_>,
        held: &mut [u8],
        (status, mut waiting): (&StatusBoard, Waiting<'_>),
    ) -> Result<(), Failure> {
        check_thread(self.only_thread);
        if held.is_empty() {
            return Ok(());
        }
        let comm = self.of_group(task.group).map_err(Failure::Error)?;
        let position = task.group.position(status.rank()).expect("a rank is in the groups of its phases");
        // SAFETY: `held` is borrowed until this returns. If it returns with an error, or unwinds, while MPI still accesses the buffer, the job ends
        // before the caller gets it back (`end_if_stranded`, `Lent`).
        let begun = unsafe { comm.begin(task, held) };
        // After a failure, MPI still reads the counts that it holds.
        let mut begun = ManuallyDrop::new(begun.map_err(Failure::Error)?);
        self.is_stranded = true;
        let lent = Lent(status);
        while !begun.is_done().map_err(Failure::Error)? {
            // MPI does not report the late rank. Name the first one, which most others wait for.
            let other = task.group.member(usize::from(position == 0));
            waiting.pause_for(other)?;
        }
        std::mem::forget(lent);
        drop(ManuallyDrop::into_inner(begun));
        self.is_stranded = false;
        if let VendorCall::ReduceScatter { .. } = task.call {
            // In place, MPI leaves a rank's part at the beginning of the buffer.
            let own = task.parts[position].clone();
            held.copy_within(..own.len(), own.start);
        }
        Ok(())
    }

    fn of_group(&mut self, group: &Group) -> Result<Comm> {
        if let Some(existing) = self.groups.iter().find(|existing| existing.group == *group) {
            return Ok(existing.comm);
        }
        let comm = self.comm.of_group(group.members())?;
        self.groups.push(GroupComm { group: group.clone(), comm });
        Ok(comm)
    }

    pub(super) fn free_groups(&mut self) -> Result<(), Error> {
        self.groups.drain(..).try_for_each(|group| group.comm.free())
    }
}
