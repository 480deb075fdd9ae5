//! Executes a collective in stream order.

use std::fmt;
use std::sync::atomic::AtomicBool;

use crate::area::{Area, BLOCK};
use crate::driver::host_address;
use crate::reduction::{DataType, Operator};
use crate::results::{Fault, Kind, Stop};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    Reduce,
    Broadcast,
    ReduceScatter,
    AllGather,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) send: u64,
    pub(crate) receive: u64,
    /// The number of elements as NCCL counts them: of one rank's part, if there are parts.
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    /// `None` if the collective does not reduce.
    pub(crate) op: Option<Operator>,
    pub(crate) root: usize,
    pub(crate) stream: usize,
}

/// Formats the arguments that ranks must agree on.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} {}", self.collective, self.count, self.dtype.name)?;
        if let Some(op) = self.op {
            write!(f, " by {op:?}")?;
        }
        if matches!(self.collective, Collective::Reduce | Collective::Broadcast) {
            write!(f, " with root {}", self.root)?;
        }
        Ok(())
    }
}

impl Call {
    /// Executes the collective as this rank; `number` collectives of the communicator came before.
    pub(crate) fn execute(&self, area: &Area, number: u64, is_aborted: &AtomicBool) -> Result<(), Stop> {
        let all = area.calls(&self.to_string(), is_aborted)?;
        if let Some(other) = all.iter().position(|call| *call != all[0]) {
            let message = format!(
                "collective {number} is not the same on all ranks: rank 0 calls {}, rank {other} calls {}",
                all[0], all[other]
            );
            return Err(Fault::new(Kind::InternalError, message).into());
        }
        let (bytes, ranks) = (self.count * self.dtype.bytes, area.ranks);
        let is_root = area.rank == self.root;
        let (sent, received) = match self.collective {
            Collective::AllReduce => (bytes, bytes),
            Collective::Reduce => (bytes, if is_root { bytes } else { 0 }),
            Collective::Broadcast => (if is_root { bytes } else { 0 }, bytes),
            Collective::ReduceScatter => (bytes * ranks, bytes),
            Collective::AllGather => (bytes, bytes * ranks),
        };
        let send = host_address("send", self.send, sent)?;
        let receive = host_address("receive", self.receive, received)?;

        let parts = if self.collective == Collective::ReduceScatter { ranks } else { 1 };
        for part in 0..parts {
            for begin in (0..bytes).step_by(BLOCK) {
                let length = BLOCK.min(bytes - begin);
                if !send.is_null() {
                    // SAFETY: within the send buffer; only this rank writes its block until the barrier.
                    unsafe { area.block(area.rank).copy_from(send.add(part * bytes + begin), length) };
                }
                area.meet(is_aborted)?;
                if !receive.is_null() && (parts == 1 || part == area.rank) {
                    // SAFETY: the receive buffer has the length that this collective needs.
                    unsafe { self.take(area, receive.add(begin), bytes, length) };
                }
                // No rank may overwrite its block before all have read it.
                area.meet(is_aborted)?;
            }
        }
        Ok(())
    }

    /// Computes what this rank receives from the blocks of all ranks.
    ///
    /// # Safety
    /// `to` must be valid for writes of `length` bytes; for an all-gather, of the parts of all ranks in `bytes`.
    unsafe fn take(&self, area: &Area, to: *mut u8, bytes: usize, length: usize) {
        let shown = |rank: usize| area.block(rank).cast_const();
        // SAFETY: as the caller promises; a block has this length, and is not written between the barriers.
        unsafe {
            match self.collective {
                Collective::Broadcast => to.copy_from(shown(self.root), length),
                Collective::AllGather => {
                    (0..area.ranks).for_each(|rank| to.add(rank * bytes).copy_from(shown(rank), length));
                }
                Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                    let all: Vec<_> = (0..area.ranks).map(shown).collect();
                    let op = self.op.expect("a reduction has an operator");
                    (self.dtype.reduce)(op, &all, to, length / self.dtype.bytes);
                }
            }
        }
    }
}
