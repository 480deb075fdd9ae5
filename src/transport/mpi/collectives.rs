//! MPI's own collectives: in the world, as a baseline, and for the phases of a plan.

use std::mem::ManuallyDrop;

use unisono_collectives::partition::Partition;
use unisono_collectives::{Group, Operation};

use super::World;
use super::ending::end_job;
use super::sys::{Comm, check_thread};
use crate::call::Call;
use crate::error::Result;
use crate::status::{StatusBoard, panicked};
use crate::transport::{Failure, VendorPhase, Waiting};

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
        let begun = unsafe { comm.begin(task, position, held) };
        // After a failure, MPI still reads the counts that it holds.
        let mut begun = ManuallyDrop::new(begun.map_err(Failure::Error)?);
        self.is_stranded = true;
        let lent = Lent(status);
        while !begun.request.is_done().map_err(Failure::Error)? {
            // MPI does not report the late rank. Name the first one, which most others wait for.
            let other = task.group.member(usize::from(position == 0));
            waiting.pause_for(other)?;
        }
        std::mem::forget(lent);
        drop(ManuallyDrop::into_inner(begun));
        self.is_stranded = false;
        if task.operation == Operation::ReduceScatter {
            // In place, MPI leaves a rank's part at the beginning of the buffer.
            let own = task.parts[position].clone();
            held.copy_within(..own.len(), own.start);
        }
        Ok(())
    }

    fn of_group(&mut self, group: &Group) -> Result<Comm> {
        if let Some((_, existing)) = self.groups.iter().find(|(known, _)| known == group) {
            return Ok(*existing);
        }
        let comm = self.comm.of_group(group.members())?;
        self.groups.push((group.clone(), comm));
        Ok(comm)
    }
}
