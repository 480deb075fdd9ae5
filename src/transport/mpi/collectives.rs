//! MPI's own collectives: in the world, as a baseline, and in groups, for the phases of a plan.

use std::ops::Range;

use unisono_collectives::Group;

use super::World;
use super::sys::{Comm, check_thread};
use crate::call::Call;
use crate::error::Result;

impl World {
    /// As [`Fabric::by_vendor`](crate::transport::Fabric::by_vendor).
    pub(in crate::transport) fn vendor(
        &mut self,
        group: Option<&Group>,
        call: &Call,
        parts: &[Range<usize>],
        buffer: &mut [u8],
    ) -> Result<()> {
        check_thread(self.only_thread);
        let comm = match group {
            None => self.comm,
            Some(group) => self.of_group(group)?,
        };
        comm.run(call, parts, buffer)
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
